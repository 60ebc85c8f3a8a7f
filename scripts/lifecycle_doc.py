"""Writes docs/lifecycle.md from the transition table; `--check` only compares."""

import sys
from pathlib import Path

from dualtrack.domain.events import EventType
from dualtrack.domain.lifecycle import TRANSITIONS, mermaid
from dualtrack.domain.reasons import Reason

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

Every change of status goes with an event, written in the same transaction. A job's events are numbered from 1 without a gap:
{events}.
"""


def page() -> str:
    rows = "\n".join(f"| {edge.source} | {edge.target} | {edge.cause} |" for edge in TRANSITIONS)
    return PAGE.format(
        picture=mermaid(),
        rows=rows,
        reasons=", ".join(f"`{reason}`" for reason in Reason),
        events=", ".join(f"`{event}`" for event in EventType),
    )


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PATH.read_text(encoding="utf-8") == page() else f"{PATH.name} is out of date: run `make docs`")
    PATH.write_text(page(), encoding="utf-8")
