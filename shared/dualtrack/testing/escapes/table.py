"""The table of rungs and attempts: for a person under pressure, a machine, a page."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from dualtrack.testing.escapes.attempt import Attempt, Said
from dualtrack.testing.escapes.run import Result

BEGIN: Final = "<!-- escapes: written by `make sandbox-escapes ESCAPES=--page=docs/sandbox.md` -->"
END: Final = "<!-- end of the escapes -->"


class Verdict(StrEnum):
    """What became of an attempt behind a rung."""

    BLOCKED = "blocked"
    ALLOWED = "allowed"
    """It works and that is by design; there is a reason for it."""
    ESCAPED = "ESCAPED"
    NOT_APPLICABLE = "n/a"
    """It can't work on this machine even without a sandbox, so that its failure behind the rung shows nothing."""
    BROKEN = "BROKEN"
    """The attempt itself made a mistake: nothing is known."""


class Control(StrEnum):
    """What became of an attempt without a sandbox."""

    USER = "works"
    """As the same plain user."""
    ROOT = "works for root"
    """A plain user is refused; root is not."""
    NEVER = "can't work here"
    NONE = "needs a sandbox"
    """It is about the sandbox's own machinery."""


@dataclass(slots=True)
class Row:
    """One attempt."""

    attempt: Attempt
    control: Control
    why: str
    """Why it can't work here; empty if it can."""
    cells: dict[str, Verdict] = field(default_factory=dict)
    """By rung."""
    notes: dict[str, str] = field(default_factory=dict)
    """By rung: the proof of an escape, the reason for what is allowed, what refused it."""


@dataclass(slots=True)
class Table:
    """Everything that was found out."""

    rows: list[Row]
    rungs: list[str]
    absent: dict[str, str]
    """Rungs that were asked for and do not work here, and why."""
    unused: dict[str, list[str]] = field(default_factory=dict)
    """Attempts that a rung may let through and does not."""

    @property
    def failures(self) -> list[str]:
        """A sentence for each escape and each broken attempt."""
        bad = (Verdict.ESCAPED, Verdict.BROKEN)
        return [
            f"{rung}: {row.attempt.name} {cell}: {row.attempt.tries}: {row.notes[rung]}"
            for row in self.rows
            for rung, cell in row.cells.items()
            if cell in bad
        ]


def control_of(attempt: Attempt, user: Result | None, root: Result | None) -> tuple[Control, str]:
    """What the control shows, and why it shows nothing."""
    if not attempt.control:
        return Control.NONE, ""
    if user is not None and user.proof:
        return Control.USER, ""
    if root is not None and root.proof:
        return Control.ROOT, ""
    last = root or user
    broken = last is not None and last.said is Said.BROKEN
    return Control.NEVER, f"broken: {last.detail}" if broken and last else f"{_refusal(last)} without a sandbox too"


def _refusal(result: Result | None) -> str:
    if result is None:
        return "refused"
    return result.detail if result.said is not Said.WORKED else "without effect"


def verdict_of(row: Row, result: Result, allowed: Mapping[str, str]) -> tuple[Verdict, str]:
    """What became of an attempt behind a rung, and the note to it."""
    name = row.attempt.name
    if result.said is Said.BROKEN:
        return Verdict.BROKEN, result.detail
    if result.proof and name in allowed:
        return Verdict.ALLOWED, allowed[name]
    if result.proof:
        return Verdict.ESCAPED, result.proof
    if row.control is Control.NEVER:
        return Verdict.NOT_APPLICABLE, row.why
    return Verdict.BLOCKED, _refusal(result)


def terminal(table: Table, *, everything: bool) -> str:
    """For a person: what is wrong first, then a section for each kind.

    `everything`: also rows in which all is blocked or not applicable; else they are only counted.
    """
    lines = _summary(table)
    width = max((len(row.attempt.name) for row in table.rows), default=0) + 2
    for kind in dict.fromkeys(row.attempt.kind for row in table.rows):
        rows = [row for row in table.rows if row.attempt.kind is kind]
        shown = [row for row in rows if everything or not set(row.cells.values()) <= {Verdict.BLOCKED, Verdict.NOT_APPLICABLE}]
        blocked = sum(set(row.cells.values()) == {Verdict.BLOCKED} for row in rows)
        lines += ["", f"{kind}: {len(rows)} attempts, {blocked} blocked everywhere"]
        if shown:
            lines.append(f"  {'':<{width}}{'no sandbox':<17}" + "".join(f"{rung:<12}" for rung in table.rungs))
        for row in shown:
            cells = "".join(f"{row.cells[rung]:<12}" for rung in table.rungs)
            lines.append(f"  {row.attempt.name:<{width}}{row.control:<17}{cells}".rstrip())
            lines += _notes(row)
    lines += ["", *_summary(table)] if table.failures else []
    return "\n".join(lines)


def _summary(table: Table) -> list[str]:
    lines = [f"{len(table.rows)} attempts to get out of a sandbox"]
    for rung in table.rungs:
        count = Counter(row.cells[rung] for row in table.rows)
        parts = [f"{count[verdict]} {verdict}" for verdict in Verdict if count[verdict] or verdict in (Verdict.BLOCKED, Verdict.ESCAPED)]
        lines.append(f"  {rung:<12}{', '.join(parts)}")
    lines += [f"  {rung:<12}does not work here: {why}" for rung, why in table.absent.items()]
    for failure in table.failures:
        lines += textwrap.wrap(f"!! {failure}", 140, subsequent_indent="   ")
    for rung, names in table.unused.items():
        lines.append(f"  {rung} no longer needs to be allowed: {', '.join(names)}")
    return lines


def _notes(row: Row) -> list[str]:
    """What it tries, and why it is let through; each reason once."""
    reasons: dict[str, list[str]] = {}
    for rung, cell in row.cells.items():
        if cell in (Verdict.ALLOWED, Verdict.ESCAPED, Verdict.BROKEN):
            reasons.setdefault(row.notes[rung], []).append(rung)
    lines = [f"    tries to {row.attempt.tries}"]
    lines += [f"    {', '.join(rungs)}: {reason}" for reason, rungs in reasons.items()]
    return [part for line in lines for part in textwrap.wrap(line, 138, initial_indent="", subsequent_indent="      ")]


def markdown(table: Table) -> str:
    """For a page: a summary, then one table for each kind."""
    head = ["rung", *(verdict.lower() for verdict in Verdict if verdict is not Verdict.BROKEN)]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for rung in table.rungs:
        count = Counter(row.cells[rung] for row in table.rows)
        lines.append(f"| {rung} | " + " | ".join(str(count[verdict]) for verdict in Verdict if verdict is not Verdict.BROKEN) + " |")
    reasons: dict[str, int] = {}
    for kind in dict.fromkeys(row.attempt.kind for row in table.rows):
        lines += ["", f"**{kind.capitalize()}**", "", f"| attempt | tries to | no sandbox | {' | '.join(table.rungs)} |"]
        lines.append("|---|---|---|" + "---|" * len(table.rungs))
        for row in (row for row in table.rows if row.attempt.kind is kind):
            cells = []
            for rung in table.rungs:
                cell = row.cells[rung]
                number = reasons.setdefault(row.notes[rung], len(reasons) + 1) if cell is Verdict.ALLOWED else 0
                cells.append(f"{cell} ({number})" if number else str(cell))
            tries = row.attempt.tries.replace("|", "\\|")
            lines.append(f"| {row.attempt.name} | {tries} | {row.control} | {' | '.join(cells)} |")
    lines += ["", "Allowed, because:", *(f"{number}. {reason}" for reason, number in reasons.items())] if reasons else []
    return "\n".join(lines) + "\n"


def into_page(page: str, text: str, about: str) -> str:
    """A page with the part between its two marks replaced. Raises `ValueError` where the page has no marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {BEGIN} or {END}")
    return f"{before}{begin}\n{about}\n\n{text}{end}{after}"


def as_json(table: Table) -> dict[str, Any]:
    """Everything, for a machine."""
    rows = [
        {
            "attempt": row.attempt.name,
            "kind": row.attempt.kind,
            "tries": row.attempt.tries,
            "control": row.control,
            "why_not_applicable": row.why,
            "rungs": {rung: {"verdict": row.cells[rung], "note": row.notes[rung]} for rung in table.rungs},
        }
        for row in table.rows
    ]
    return {"rungs": table.rungs, "absent": table.absent, "failures": table.failures, "rows": rows}


def filled(
    attempts: Sequence[Attempt],
    controls: Mapping[str, tuple[Control, str]],
    results: Mapping[str, Mapping[str, Result]],
    allowed: Mapping[str, Mapping[str, str]],
    absent: Mapping[str, str],
) -> Table:
    """The table of what was run: `results` by rung and attempt."""
    table = Table([Row(attempt, *controls[attempt.name]) for attempt in attempts], list(results), dict(absent))
    for row in table.rows:
        for rung, found in results.items():
            row.cells[rung], row.notes[rung] = verdict_of(row, found[row.attempt.name], allowed.get(rung, {}))
    for rung, found in results.items():
        unused = [name for name in allowed.get(rung, {}) if name in found and not found[name].proof]
        if unused:
            table.unused[rung] = unused
    return table
