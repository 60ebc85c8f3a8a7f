"""External calls that nobody knows the outcome of, in a job that ends: they say so, whoever ends it and however."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import func, text, update

from dualtrack.db import approvals
from dualtrack.db.engine import Database
from dualtrack.db.tables import approvals as approvals_table
from dualtrack.db.tables import calls as calls_table
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.doctor import examination
from dualtrack.domain.approval import Resolution
from dualtrack.domain.doubt import EARLIER, TOLD
from dualtrack.domain.errors import AnswerBroken, HostUnreachable, InternalFault
from dualtrack.domain.events import EventType
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import CallStatus, JobStatus
from dualtrack.engine import stumbles
from dualtrack.engine.approvals import Decisions
from dualtrack.testing.payments import PAY, Pay, breaks, once, only_call, take_over
from dualtrack.testing.stepper import Stepper
from dualtrack.tools.registry import TOOLS, Registry

from .conftest import Make, cancel, finish, types
from .test_engine_external import AGENT

pytestmark = pytest.mark.usefixtures("healthy")

UNKNOWN = {"outcome": "unknown"}


@pytest.fixture
def stepper(make: Make, pay: Pay) -> Stepper:
    return make([PAY, finish()], registry=Registry((*TOOLS, pay)), attempts=3)


def asks(stepper: Stepper, pay: Pay) -> Job:
    """A job that waits for somebody to say whether its payment happened."""
    job = stepper.submit(agent=AGENT | {"on_unknown": "ask"})
    pay.then = take_over(stepper, job)
    while stepper.job(job).status is not JobStatus.WAITING:
        assert stepper.ring()
    return stepper.job(job)


def said(stepper: Stepper, job: Job) -> dict[str, Any]:
    """What the event of the payment's end tells."""
    ends = (EventType.CALL_FINISHED, EventType.CALL_CANCELLED)
    (data,) = (event.data for event in stepper.events(job) if event.type in ends and event.data["tool"] == "pay")
    return dict(data)


def assert_told(stepper: Stepper, job: Job, pay: Pay, status: CallStatus = CallStatus.CANCELLED) -> None:
    call = only_call(stepper, job)
    assert (call.status, call.preview, call.details, len(pay.keys)) == (status, TOLD, UNKNOWN, 1)
    data = said(stepper, job)
    assert (data["observation"], data["details"]) == (TOLD, UNKNOWN)


def test_its_worker_died_and_it_is_cancelled(stepper: Stepper, pay: Pay) -> None:
    job = stepper.submit(agent=AGENT)

    def dies() -> None:
        stepper.leases_run_out()
        cancel(stepper, job)

    pay.then = once(dies)
    assert stepper.run(job).status is JobStatus.CANCELLED
    assert_told(stepper, job, pay)


def test_somebody_is_asked_and_it_is_cancelled(stepper: Stepper, pay: Pay) -> None:
    job = asks(stepper, pay)
    cancel(stepper, job)
    assert stepper.job(job).status is JobStatus.CANCELLED
    assert_told(stepper, job, pay)


def test_somebody_is_asked_and_it_is_out_of_time(stepper: Stepper, pay: Pay, database: Database) -> None:
    job = asks(stepper, pay)
    with database.transaction() as tx:  # approvals that are waited for come first, unless they are gone
        tx.connection.execute(text("DELETE FROM approvals"))
        tx.connection.execute(update(jobs_table).values(waiting_until=func.now()))
    stepper.scheduler.tick()
    assert stepper.job(job).status is JobStatus.EXPIRED
    assert_told(stepper, job, pay)


def test_it_can_not_be_taken_on_any_more(stepper: Stepper, pay: Pay) -> None:
    job = asks(stepper, pay)
    for _ in range(stepper.runtime.limits.attempts):
        stepper.time_passes()
        with stepper.runtime.database.transaction() as tx:
            tx.connection.execute(update(calls_table).where(calls_table.c.job_id == job.id).values(held=None, due_at=func.now()))
        stumbles.record(stepper.runtime, "calls", only_call(stepper, job).id, InternalFault("ours"))
    assert stepper.job(job).status is JobStatus.FAILED
    assert_told(stepper, job, pay)


def test_it_is_made_again_until_nobody_tries_any_more(stepper: Stepper, pay: Pay) -> None:
    job = stepper.submit(agent=AGENT | {"on_unknown": "retry"})

    def fails() -> None:
        raise RuntimeError("a fault of the tool")

    pay.then = fails
    assert stepper.run(job).status is JobStatus.FAILED
    call = only_call(stepper, job)
    assert (len(pay.keys), set(pay.keys)) == (3, {call.id})
    assert (call.status, call.preview, call.details, call.intent_at is None) == (CallStatus.CANCELLED, TOLD, UNKNOWN, False)
    assert said(stepper, job)["details"] == UNKNOWN


def test_a_second_attempt_that_sends_nothing_does_not_lift_the_doubt_of_the_first(stepper: Stepper, pay: Pay) -> None:
    job = stepper.submit(agent=AGENT | {"on_unknown": "retry"})
    pay.then = breaks(AnswerBroken("cut off"))

    def gone() -> None:
        if pay.keys:
            raise HostUnreachable("no route")

    pay.before = gone
    for _ in range(10):
        if types(stepper, job).count("call.retrying") == 2:
            break
        if not stepper.ring():
            stepper.time_passes()
            stepper.scheduler.tick()
    assert only_call(stepper, job).intent_at is None
    cancel(stepper, job)
    assert stepper.job(job).status is JobStatus.CANCELLED
    assert_told(stepper, job, pay)


def test_a_second_attempt_that_is_refused_does_not_lift_it_either(stepper: Stepper, pay: Pay) -> None:
    job = stepper.submit(agent=AGENT | {"on_unknown": "retry"})
    pay.then = breaks(AnswerBroken("cut off"))
    pay.refuses = True
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    call = only_call(stepper, job)
    assert (call.ok, call.preview, call.details) == (False, f"refused\n{EARLIER}", UNKNOWN)


def test_a_person_has_it_made_again_and_it_is_cancelled_before(stepper: Stepper, pay: Pay) -> None:
    job = asks(stepper, pay)
    with stepper.runtime.database.transaction() as tx:
        (asked,) = approvals.pending(tx, job.id)
    Decisions(stepper.runtime, tenant_id=job.tenant_id, by="key").resolve(asked.id, Resolution.RETRY)
    assert only_call(stepper, job).details == UNKNOWN
    cancel(stepper, job)
    assert stepper.job(job).status is JobStatus.CANCELLED
    assert_told(stepper, job, pay)


def test_a_person_has_the_job_fail(stepper: Stepper, pay: Pay) -> None:
    job = asks(stepper, pay)
    with stepper.runtime.database.transaction() as tx:
        (asked,) = approvals.pending(tx, job.id)
    Decisions(stepper.runtime, tenant_id=job.tenant_id, by="key").resolve(asked.id, Resolution.FAIL)
    assert only_call(stepper, job).details == UNKNOWN | {"approval_id": asked.id}


def test_nobody_says_in_time(stepper: Stepper, pay: Pay, database: Database) -> None:
    job = asks(stepper, pay)
    with database.transaction() as tx:
        tx.connection.execute(update(approvals_table).values(expires_at=func.now()))
    stepper.scheduler.tick()
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert only_call(stepper, job).details["outcome"] == "unknown"


def test_an_answer_that_came_is_kept_although_the_job_was_told_to_stop(stepper: Stepper, pay: Pay) -> None:
    job = stepper.submit(agent=AGENT)

    def stops() -> None:
        cancel(stepper, job)
        assert pay.cancel.wait(5)

    pay.then = stops
    assert stepper.run(job).status is JobStatus.CANCELLED
    call = only_call(stepper, job)
    assert (call.status, call.preview, said(stepper, job)["observation"]) == (CallStatus.SUCCEEDED, "paid", "paid")


def test_what_surely_was_not_begun_is_just_cancelled(stepper: Stepper, pay: Pay) -> None:
    job = stepper.submit(agent=AGENT)
    while stepper.job(job).step < 1:
        assert stepper.ring()
    cancel(stepper, job)
    call = only_call(stepper, job)
    assert (call.status, call.preview, call.details, pay.keys) == (CallStatus.CANCELLED, "", {}, [])
    assert "observation" not in said(stepper, job)


def test_calls_of_an_earlier_release_say_so_after_the_upgrade(stepper: Stepper, pay: Pay, database: Database) -> None:
    job = asks(stepper, pay)
    cancel(stepper, job)
    with database.transaction() as tx:
        tx.connection.execute(text("ALTER TABLE calls DISABLE TRIGGER calls_outcome_once"))
        tx.connection.execute(update(calls_table).where(calls_table.c.job_id == job.id).values(preview="", details={}))
        tx.connection.execute(text("ALTER TABLE calls ENABLE TRIGGER calls_outcome_once"))
    broken = [finding.name for finding in examination.examine(database) if not finding.holds]
    assert broken == ["calls.doubt"]
    migration = importlib.import_module("dualtrack.db.migrations.versions.0012_doubts")
    with database.transaction() as tx, Operations.context(MigrationContext.configure(tx.connection)):
        migration.upgrade()
    call = only_call(stepper, job)
    assert (call.preview, call.details) == (TOLD, UNKNOWN)
