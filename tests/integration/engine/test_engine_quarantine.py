"""Which rows go to a process of their own: those tried often without a record, and no others."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from dualtrack.db.engine import Database
from dualtrack.domain.errors import NotFound
from dualtrack.domain.lifecycle import CallStatus
from dualtrack.domain.limits import SUSPECT_TRIES
from dualtrack.engine.executor import Executor
from dualtrack.engine.planner import Planner
from dualtrack.engine.quarantine import Quarantine
from dualtrack.engine.runtime import WorkerRuntime
from dualtrack.testing.scripted_model import ScriptedModel

from .conftest import Make, finish, shell


class Recording(Quarantine):
    """Remembers what would have been worked on by a process of its own."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, "nobody.main")
        self.rows: list[str] = []

    def _work_on(self, row_id: str) -> None:
        self.rows.append(row_id)


def tried(database: Database, table: str, row_id: str, tries: int) -> None:
    with database.transaction() as tx:
        tx.connection.execute(text(f"UPDATE {table} SET tries = :tries WHERE id = :id"), {"tries": tries, "id": row_id})


def test_a_suspect_job_is_planned_elsewhere(make: Make, database: Database) -> None:
    stepper = make([finish()])
    quarantine = Recording(database)
    planner = Planner(WorkerRuntime(stepper.runtime, stepper.presence, stepper.leases, quarantine), ScriptedModel([finish()]))
    job = stepper.submit()
    tried(database, "jobs", job.id, SUSPECT_TRIES)
    planner.advance(job.id)
    assert (quarantine.rows, stepper.job(job).step) == ([job.id], 0)
    tried(database, "jobs", job.id, SUSPECT_TRIES - 1)
    planner.advance(job.id)
    assert stepper.job(job).status == "succeeded"
    planner.advance(job.id)  # a ring too many for a job that has ended
    assert quarantine.rows == [job.id]


def test_a_suspect_call_is_run_elsewhere_and_by_whoever_is_that(make: Make, database: Database, sandbox: Any) -> None:
    stepper = make([shell("true"), finish()])
    quarantine = Recording(database)
    worker = WorkerRuntime(stepper.runtime, stepper.presence, stepper.leases, quarantine)
    executor = Executor(worker, stepper.executor._work)
    job = stepper.submit()
    assert stepper.ring()
    (call,) = stepper.steps(job)[0].calls
    tried(database, "calls", call.id, SUSPECT_TRIES)
    executor.run(call.id)
    assert (quarantine.rows, sandbox.ran) == ([call.id], [])
    stepper.executor.run(call.id)  # one without a quarantine, as such a process is
    (call,) = stepper.steps(job)[0].calls
    assert (call.status, call.tries) == (CallStatus.SUCCEEDED, SUSPECT_TRIES + 1)


def test_what_names_no_row_is_told(make: Make, database: Database, sandbox: Any) -> None:
    stepper = make([finish()])
    worker = WorkerRuntime(stepper.runtime, stepper.presence, stepper.leases, Recording(database))
    with pytest.raises(NotFound):
        Planner(worker, ScriptedModel([finish()])).advance("job_nobody")
    with pytest.raises(NotFound):
        Executor(worker, stepper.executor._work).run("call_nobody")
