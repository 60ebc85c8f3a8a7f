"""The matrix as a terminal, a machine and a page show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from dualtrack.testing.chaos.judge import Recovery, Verdict

COLUMNS: Final = ("fault", "jobs", "lost", "repeated", "stuck", "wrong events", "recovery")


_BEGIN: Final = "<!-- matrix: written by `make chaos CHAOS=--page=docs/reliability.md` -->"
_END: Final = "<!-- end of the matrix -->"


@dataclass(slots=True)
class Result:
    """A row that was run."""

    name: str
    what: str
    verdict: Verdict
    recovery: Recovery
    within_s: float
    seconds: float
    broken: list[str] = field(default_factory=list)
    """Why the row proves nothing, or what other invariant does not hold."""

    @property
    def passed(self) -> bool:
        """All zeros, and recovered in time."""
        return self.verdict.clean and not self.broken and self.recovery.seconds <= self.within_s

    @property
    def problems(self) -> list[str]:
        """A sentence for everything that is not as it should be."""
        late = [f"recovery took more than {self.within_s:g} s: {self.recovery.what}"] * (self.recovery.seconds > self.within_s)
        return [*self.broken, *self.verdict.problems, *late]


def cells(result: Result) -> tuple[str, ...]:
    """A row's texts, in the order of `COLUMNS`."""
    verdict = result.verdict
    numbers = (verdict.jobs, verdict.lost, verdict.repeated, verdict.stuck, verdict.wrong_events)
    return (result.what, *map(str, numbers), f"{result.recovery.seconds:.2f} s")


def terminal_head() -> str:
    """The head of the table on a terminal."""
    return _terminal(COLUMNS)


def terminal_row(result: Result) -> str:
    """One row, and under it what is wrong with it."""
    mark = "ok" if result.passed else "FAILED"
    lines = [f"{_terminal(cells(result))}  {mark} ({result.seconds:.0f} s)"]
    return "\n".join([*lines, *(f"    {problem}" for problem in result.problems[:20])])


def markdown(results: Sequence[Result]) -> str:
    """The table for a page."""
    lines = ["| " + " | ".join([*COLUMNS, "limit"]) + " |", "|---|" + "---:|" * len(COLUMNS)]
    lines += ["| " + " | ".join([*cells(result), f"{result.within_s:g} s"]) + " |" for result in results]
    return "\n".join(lines) + "\n"


def into_page(page: str, table: str, about: str) -> str:
    """A page with the table between its two marks replaced. Raises `ValueError` where the page has no marks."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"the page lacks {_BEGIN} or {_END}")
    return f"{before}{begin}\n{about}\n\n{table}{end}{after}"


def as_json(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Everything, for a machine."""
    return [asdict(result) | {"passed": result.passed, "problems": result.problems} for result in results]


def _terminal(texts: Sequence[str]) -> str:
    first, *rest = texts
    return f"{first:<58.58}" + "".join(f"{text:>{width}}" for text, width in zip(rest, (6, 6, 10, 7, 14, 10), strict=True))
