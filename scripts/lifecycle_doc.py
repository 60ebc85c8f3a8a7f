"""Writes docs/lifecycle.md from the transition table, the events and their fields; `--check` only compares."""

from __future__ import annotations

import ast
import inspect
import sys
from enum import StrEnum
from pathlib import Path

from dualtrack.domain.events import EventType
from dualtrack.domain.lifecycle import TRANSITIONS, mermaid
from dualtrack.domain.reasons import Reason
from dualtrack.sandbox.port import Ended

PATH = Path(__file__).parents[1] / "docs" / "lifecycle.md"
PAGE = """\
# The life of a job

Drawn from the table in `shared/dualtrack/domain/lifecycle.py` by `make docs`; a database trigger refuses every other change.

```mermaid
{picture}```

| from | to | cause |
|---|---|---|
{rows}

A job that only waits for its children stays `running`, since its family is at work: its wall time counts on, and a child that waits for
somebody says so itself. `waiting_for` of the job's view names the children ([api.md](api.md#children)).

A job that ended other than well says why in `reason`: {reasons}, or the code of the error that retries did not mend.

## Events

Every change of status goes with an event, written in the same transaction. A job's events are numbered from 1 without a gap.
Fields may be added to `data`.

| event | `data` |
|---|---|
{events}

`usage` has `input_tokens`, `output_tokens`, `cached_tokens`, `total_tokens` and `cost_usd` (text).
In `details` of a command `ended` is one of {ended}.
"""


def documented(kind: type[StrEnum]) -> dict[str, str]:
    """The members' values, each with the text that stands below it in the source."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    texts: dict[str, str] = {}
    name = ""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = kind[statement.targets[0].id].value
            texts[name] = ""
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and name:
            texts[name] = " ".join(str(statement.value.value).split())
    return texts


def page() -> str:
    rows = "\n".join(f"| {edge.source} | {edge.target} | {edge.cause} |" for edge in TRANSITIONS)
    return PAGE.format(
        picture=mermaid(),
        rows=rows,
        reasons=", ".join(f"`{reason}`" for reason in Reason),
        events="\n".join(f"| `{event}` | {text} |" for event, text in documented(EventType).items()),
        ended=", ".join(f"`{value}`" for value in Ended),
    )


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PATH.read_text(encoding="utf-8") == page() else f"{PATH.name} is out of date: run `make docs`")
    PATH.write_text(page(), encoding="utf-8")
