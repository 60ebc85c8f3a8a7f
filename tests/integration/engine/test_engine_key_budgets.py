"""What an API key may use in a day: its jobs wait for the next one, and no limit that is raised meanwhile is missed."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, text, update

from dualtrack.db import budgets, jobs, tenants
from dualtrack.db.engine import Database
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.db.tables import key_usage
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import JobStatus, Phase
from dualtrack.domain.limits import LimitsChange
from dualtrack.domain.waiting import Hold
from dualtrack.engine import extension, flow
from dualtrack.models.port import DecisionRequest
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.testing.stepper import Stepper

from .conftest import Make, cancel, finish, shell
from .test_engine_budgets import echoes

pytestmark = pytest.mark.usefixtures("one_day")


def make_key(stepper: Stepper, **limits: Any) -> str:
    with stepper.runtime.database.transaction() as tx:
        caller = tenants.caller(tx, tenants.create_key(tx, stepper.tenant_id, "test"))
        assert caller is not None
        budgets.set_key_limits(tx, caller.key_id, limits or {"day_tokens": None})
        return caller.key_id


def used(stepper: Stepper, key_id: str) -> int:
    with stepper.runtime.database.transaction() as tx:
        return budgets.key_day(tx, key_id, stepper.runtime.limits).usage.total_tokens


def test_what_a_key_uses_is_counted_with_each_decision(make: Make, database: Database) -> None:
    stepper = make([*echoes(2, input_tokens=100, output_tokens=1), {"text": "no action"}, finish()])
    key_id = make_key(stepper)
    found = [stepper.run(stepper.submit(f"job {n}", key_id=key_id)) for n in range(5)]
    assert used(stepper, key_id) == sum(job.usage.total_tokens for job in found) > 0
    stepper.run(stepper.submit("nobody's"))
    with database.transaction() as tx:
        rows = tx.connection.execute(select(key_usage)).all()
    assert {row.key_id for row in rows} == {key_id}
    assert {row.shard for row in rows} == {budgets.shard_of(job.id) for job in found}


def test_a_key_at_its_limit_waits_for_the_next_day(make: Make, database: Database) -> None:
    stepper = make([*echoes(3, input_tokens=100, output_tokens=0), finish()])
    key_id = make_key(stepper, day_tokens=200)
    job = stepper.submit(key_id=key_id, limits={"on_limit": "fail"})
    stepper.rest()
    job = stepper.job(job)
    assert (job.status, job.reason, job.step) == (JobStatus.WAITING, "budget", 2)
    assert job.message is not None
    assert f"{key_id} has used 200 of its 200 tokens" in job.message
    stepper.rest()
    assert stepper.job(job).step == 2
    assert stepper.job(stepper.submit("of no key")).status is JobStatus.QUEUED
    with database.transaction() as tx:
        midnight = jobs_table.c.not_before == text("(current_date + 1)::timestamptz")
        assert tx.connection.execute(select(midnight).where(jobs_table.c.id == job.id)).scalar_one()
        # The day is over: today's rows are yesterday's, and the time to look again has come.
        tx.connection.execute(update(key_usage).values(day=key_usage.c.day - 1))
        tx.connection.execute(update(jobs_table).where(jobs_table.c.not_before.is_not(None)).values(not_before=func.now()))
    stepper.scheduler.tick()
    assert stepper.job(job).status is JobStatus.RUNNING
    assert stepper.run(job).status is JobStatus.SUCCEEDED


def test_a_keys_raised_limit_wakes_its_jobs_and_one_raised_too_little_does_not(make: Make) -> None:
    stepper = make([*echoes(3, input_tokens=100, output_tokens=0), finish()])
    key_id = make_key(stepper, day_tokens=100)
    job = stepper.submit(key_id=key_id)
    stepper.rest()
    for tokens, steps in ((101, 2), (150, 2)):
        with stepper.runtime.database.transaction() as tx:
            budgets.set_key_limits(tx, key_id, {"day_tokens": tokens})
        stepper.rest()
        assert (stepper.job(job).reason, stepper.job(job).step) == ("budget", steps)
    with stepper.runtime.database.transaction() as tx:
        budgets.set_key_limits(tx, key_id, {"day_tokens": None})
    assert stepper.run(job).status is JobStatus.SUCCEEDED


def raise_limit(database: Database, key_id: str) -> None:
    with database.transaction() as tx:
        budgets.set_key_limits(tx, key_id, {"day_tokens": 1_000_000})


def about_to_wait(stepper: Stepper, key_id: str) -> Job:
    """A job of a key that its first step has used up, before its next claim."""
    job = stepper.submit(key_id=key_id)
    while stepper.job(job).step == 0 or stepper.job(job).phase is Phase.EXECUTE:
        assert stepper.ring()
    return job


def test_a_keys_limit_raised_just_as_a_job_begins_to_wait_for_it_lets_it_go_on(make: Make, database: Database) -> None:
    stepper = make([*echoes(1, input_tokens=100, output_tokens=0), finish()])
    key_id = make_key(stepper, day_tokens=100)
    job = about_to_wait(stepper, key_id)
    with database.transaction() as tx:  # as the planner does
        flow.hold(tx, stepper.runtime, jobs.get(tx, job.id, lock=True), Hold.BUDGET, by="planner")
        raise_limit(database, key_id)
    assert stepper.job(job).status is JobStatus.WAITING
    stepper.rest()
    assert stepper.job(job).status is JobStatus.SUCCEEDED


def test_a_keys_limit_that_is_being_raised_is_waited_for_and_not_read_as_it_was(make: Make, database: Database) -> None:
    stepper = make([*echoes(1, input_tokens=100, output_tokens=0), finish()])
    key_id = make_key(stepper, day_tokens=100)
    job = about_to_wait(stepper, key_id)
    with database.transaction() as tx, ThreadPoolExecutor(1) as pool:
        budgets.set_key_limits(tx, key_id, {"day_tokens": 1_000_000})
        assert stepper.ring()  # it begins to wait, unseen by whoever raises the limit
        assert stepper.job(job).status is JobStatus.WAITING
        tick = pool.submit(stepper.scheduler.tick)
        blocked, deadline = text("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"), time.monotonic() + 20
        while not tx.connection.execute(blocked).scalar_one():
            assert not tick.done(), "the scheduler looked at the limit as it was"
            assert time.monotonic() < deadline
        tx.connection.commit()
        tick.result(20)
    assert stepper.job(job).status is JobStatus.RUNNING
    assert stepper.run(job).status is JobStatus.SUCCEEDED


def test_a_keys_limit_raised_while_the_jobs_own_is_extended_is_not_missed(make: Make, database: Database) -> None:
    stepper = make([*echoes(1, input_tokens=100, output_tokens=0), finish()])
    key_id = make_key(stepper, day_tokens=100)
    job = stepper.submit(key_id=key_id, limits={"steps": 1})
    stepper.rest()
    with database.transaction() as tx:
        extension.extend(tx, stepper.runtime, jobs.get(tx, job.id, lock=True), LimitsChange(steps=9), by="test")
        raise_limit(database, key_id)
    waiting = stepper.job(job)
    assert waiting.message is not None
    assert key_id in waiting.message
    stepper.rest()
    assert stepper.job(job).status is JobStatus.SUCCEEDED


def test_the_operators_default_holds_for_keys_without_a_limit(make: Make) -> None:
    stepper = make([*echoes(3, input_tokens=100, output_tokens=0), finish()], key_day_tokens=100)
    poor, rich = make_key(stepper), make_key(stepper, day_tokens=10_000)
    waiting = stepper.submit("poor", key_id=poor)
    assert stepper.run(stepper.submit("rich", key_id=rich)).status is JobStatus.SUCCEEDED
    stepper.rest()
    assert stepper.job(waiting).reason == "budget"


def test_no_job_expires_before_the_next_day_of_its_key(make: Make, database: Database) -> None:
    stepper = make([*echoes(3, input_tokens=100, output_tokens=0), finish()], waiting_s=60)
    key_id = make_key(stepper, day_tokens=100)
    job = stepper.submit(key_id=key_id)
    stepper.rest()
    with database.transaction() as tx:
        row = tx.connection.execute(select(jobs_table.c.not_before, jobs_table.c.waiting_until).where(jobs_table.c.id == job.id)).one()
        assert row.waiting_until == row.not_before + timedelta(seconds=60)
        # The day begins, the scheduler was away for so long that the wait is over too, and others have used the new day already.
        tx.connection.execute(update(jobs_table).values(not_before=func.now(), waiting_until=func.now()))
    stepper.scheduler.tick()
    waiting = stepper.job(job)
    assert waiting.status is JobStatus.WAITING
    assert waiting.waiting_until == row.waiting_until


def test_a_decision_that_a_cancelled_job_was_waiting_for_counts_for_its_key(make: Make) -> None:
    stop: list[Job] = []

    def cancelled(_: DecisionRequest) -> None:
        cancel(stepper, stop[0])

    stepper = make(ScriptedModel([{**shell("true"), "input_tokens": 100, "output_tokens": 0}], on_decide=cancelled))
    key_id = make_key(stepper)
    stop.append(stepper.submit(key_id=key_id))
    job = stepper.run(stop[0])
    assert (job.status, job.usage.total_tokens) == (JobStatus.CANCELLED, 0)
    assert used(stepper, key_id) == 100
