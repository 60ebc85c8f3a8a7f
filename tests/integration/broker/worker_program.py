"""A worker process for the tests of Celery on a real broker: its tasks are what their ids say, and every step of one is a line of a file.

    python worker_program.py FILE TASK THREADS END_AFTER_SECONDS HOME_WAIT_MS

`sleep-SECONDS-…` sleeps, `unknown-…` is of no row, `deaf-PID` makes that worker go silent: connected, but no consumer any more. Anything
else does nothing. Lines: `begin ID PID`, `end ID PID`, and for an executor `home NAME PID` at its start.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from celery import bootsteps

from dualtrack import bootstrap, health
from dualtrack.domain.errors import NotFound
from dualtrack.health import HealthFile
from dualtrack.queues import topology
from dualtrack.queues.celery_app import create_app, run_worker
from dualtrack.queues.consuming import Consuming
from dualtrack.queues.port import Rung, Task
from dualtrack.queues.strategy import HOME_KEY
from dualtrack.telemetry import logs
from dualtrack.work import Work

_FILE = Path(sys.argv[1])
_TASK = Task(sys.argv[2])
_THREADS = int(sys.argv[3])
_END_AFTER_S = float(sys.argv[4])
_HOME_WAIT_MS = int(sys.argv[5])


_consumers: list[Any] = []


class _Keep(bootsteps.Step):
    """Keeps Celery's consumer where a task can get at it."""

    def __init__(self, parent: Any, **_: Any) -> None:
        super().__init__(parent)
        _consumers.append(parent)


def _say(what: str, row_id: str) -> None:
    with _FILE.open("a") as file:
        file.write(f"{what} {row_id} {os.getpid()}\n")


def _begin(rung: Rung) -> list[str | None]:
    """Take what has come together, as a platform does, and fail for some."""
    rows = rung()
    _say("together", str(len(rows)))
    if any(row_id.startswith("spoiled") for row_id in rows):
        raise RuntimeError("nothing is begun")
    return [f"begun {row_id}" if row_id.startswith("together") else None for row_id in rows]


def _handle(row_id: str, begun: object) -> Work[None]:
    yield from ()
    assert begun == (f"begun {row_id}" if row_id.startswith("together") else None)
    _say("begin", row_id)
    kind, _, rest = row_id.partition("-")
    if kind == "deaf" and int(rest) == os.getpid():
        health.END_AFTER_S = _END_AFTER_S  # type: ignore[misc] # a minute is long in a test; only now, as starting may take longer
        consumer = _consumers[-1]
        consumer.hub.call_soon(consumer.task_consumer.cancel)
    if kind == "unknown":
        raise NotFound(f"There is no row {row_id!r}.")
    if kind == "sleep":
        time.sleep(float(rest.split("-")[0]))
    _say("end", row_id)


def main() -> None:
    topology.HOME_WAIT_MS = _HOME_WAIT_MS  # type: ignore[misc] # a busy machine may take longer to get at a message
    settings = bootstrap.load_settings()
    logs.setup("worker", settings.telemetry)
    app = create_app(settings.broker, _TASK, _handle, begin=_begin)
    app.steps["consumer"].add(_Keep)
    _say("home", str(app.conf[HOME_KEY]))
    probe = Consuming(app, settings.broker, _TASK, _THREADS).probe
    with HealthFile(settings.workers.health_file, {"broker": probe}) as file:
        status = run_worker(app, _TASK, _THREADS)
    sys.exit(1 if status or file.gave_up else 0)


if __name__ == "__main__":
    main()
