"""Rows that no worker can take on: they end their job, once, instead of being rung for until its time is over."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from dualtrack.db.engine import Database
from dualtrack.db.tables import calls as calls_table
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.domain.errors import DatabaseUnavailable, RecordUnreadable
from dualtrack.domain.lifecycle import CallStatus, JobStatus
from dualtrack.engine import stumbles
from dualtrack.testing.stepper import Stepper

from .conftest import Make, finish, shell, types


def status(database: Database, job_id: str) -> tuple[str, str | None]:
    with database.transaction() as tx:
        row = tx.connection.execute(jobs_table.select().where(jobs_table.c.id == job_id)).one()
        return row.status, row.reason


def test_a_job_that_two_find_unreadable_ends_once(make: Make, database: Database) -> None:
    stepper = make([finish()])
    job = stepper.submit()
    with database.transaction() as tx:
        tx.connection.execute(update(jobs_table).values(spec={}))
    for _ in range(2):
        stumbles.record(stepper.runtime, "jobs", job.id, RecordUnreadable("it can't be read"))
    assert status(database, job.id) == ("failed", "record_unreadable")
    assert types(stepper, job) == ["job.queued", "job.failed"]


def test_a_job_that_can_be_read_no_more_while_its_calls_wait_ends(make: Make, database: Database) -> None:
    stepper = make([shell("true"), finish()])
    job = stepper.submit()
    assert stepper.ring()
    with database.transaction() as tx:
        tx.connection.execute(update(jobs_table).values(spec={}))
    assert stepper.ring()
    assert status(database, job.id) == ("failed", "record_unreadable")
    assert types(stepper, job)[-2:] == ["call.cancelled", "job.failed"]


def fails(*_: Any, **__: Any) -> Any:
    raise KeyError("nobody foresaw this")


def claims_fail(stepper: Stepper, patched: pytest.MonkeyPatch) -> None:
    """A planner meets something that nobody foresaw whenever it claims a job."""
    patched.setattr(stepper.planner._gate, "plainly_open", lambda *_: False)
    patched.setattr(stepper.planner._gate, "closed", fails)


def test_a_job_that_no_planner_can_claim_ends(make: Make, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    stepper = make([shell("true"), finish()], attempts=3)
    job = stepper.submit()
    claims_fail(stepper, monkeypatch)
    let_time_pass(stepper, 2)
    assert status(database, job.id) == ("running", None)
    let_time_pass(stepper, 1)
    assert status(database, job.id) == ("failed", "internal_fault")
    assert types(stepper, job) == ["job.queued", "job.started", "job.failed"]


def test_a_call_that_no_executor_can_claim_ends_its_job(make: Make, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    stepper = make([shell("true"), finish()], attempts=3)
    job = stepper.submit()
    assert stepper.ring()
    monkeypatch.setattr(stepper.executor._usual, "begin", fails)
    monkeypatch.setattr(stepper.executor, "_claim", fails)
    let_time_pass(stepper, 3)
    assert status(database, job.id) == ("failed", "internal_fault")
    with database.transaction() as tx:
        assert [row.status for row in tx.connection.execute(calls_table.select())] == [CallStatus.CANCELLED]


def test_a_job_that_stumbled_goes_on_as_if_nothing_had_been(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    stepper = make([shell("true"), finish()], attempts=3)
    job = stepper.submit()
    with monkeypatch.context() as patched:
        claims_fail(stepper, patched)
        let_time_pass(stepper, 2)
    assert stepper.run(job).status is JobStatus.SUCCEEDED


def test_a_database_that_is_away_is_no_stumble(make: Make, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    stepper = make([finish()], attempts=1)
    job = stepper.submit()

    def away(*_: Any, **__: Any) -> None:
        raise DatabaseUnavailable("it is away")

    with monkeypatch.context() as patched:
        patched.setattr(stepper.planner._gate, "plainly_open", away)
        with pytest.raises(DatabaseUnavailable):
            stepper.ring()
    assert stepper.run(job).status is JobStatus.SUCCEEDED


def let_time_pass(stepper: Stepper, times: int) -> None:
    for _ in range(times):
        if not stepper.doorbell.rings:
            stepper.time_passes()
            stepper.scheduler.tick()
        assert stepper.ring()
