"""A limit that is reached lets the job wait, whole and readable, until it is extended; a key's day likewise, until it ends."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import func, select, text, update

from dualtrack.db import budgets, jobs, tenants
from dualtrack.db.engine import Database
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.db.tables import key_usage
from dualtrack.domain.budgets import Shortage
from dualtrack.domain.errors import Conflict, DatabaseUnavailable, InvalidRequest
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import JobStatus, Phase
from dualtrack.domain.limits import LimitsChange, PlatformLimits
from dualtrack.domain.reasons import Reason
from dualtrack.domain.waiting import Hold
from dualtrack.engine import budgets as engine_budgets
from dualtrack.engine import ending, extension, flow, steering
from dualtrack.engine.planner import Planner
from dualtrack.engine.runtime import Runtime, WorkerRuntime
from dualtrack.models.port import DecisionRequest
from dualtrack.settings import DatabaseSettings
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.testing.stepper import Stepper

from .conftest import CountingSandbox, Make, cancel, finish, shell, types


def echoes(count: int, **usage: int) -> list[dict[str, Any]]:
    return [{**shell(f"echo {n} >> log"), **usage} for n in range(count)]


def extend(stepper: Stepper, job: Job, **limits: Any) -> Job:
    with stepper.runtime.database.transaction() as tx:
        extension.extend(tx, stepper.runtime, jobs.get(tx, job.id, lock=True), LimitsChange.model_validate(limits), by="test")
    return stepper.job(job)


def make_key(stepper: Stepper, **limits: Any) -> str:
    with stepper.runtime.database.transaction() as tx:
        caller = tenants.caller(tx, tenants.create_key(tx, stepper.tenant_id, "test"))
        assert caller is not None
        budgets.set_key_limits(tx, caller.key_id, limits or {"day_tokens": None})
        return caller.key_id


def used(stepper: Stepper, key_id: str) -> int:
    with stepper.runtime.database.transaction() as tx:
        return budgets.key_day(tx, key_id, stepper.runtime.limits).usage.total_tokens


@pytest.mark.parametrize(
    ("limits", "more", "figures"),
    [
        ({"steps": 2}, {"steps": 10}, "2 of the job's 2 steps are used (limits.steps)"),
        ({"tokens": 150}, {"tokens": 10_000}, "202 of the job's 150 tokens are used (limits.tokens)"),
    ],
)
def test_a_job_at_its_limit_waits_and_goes_on_once_extended(make: Make, limits: dict[str, Any], more: dict[str, Any], figures: str) -> None:
    stepper = make([*echoes(4, input_tokens=100, output_tokens=1), finish()])
    job = stepper.submit(limits=limits)
    stepper.rest()
    job = stepper.job(job)
    assert (job.status, job.reason, job.step, job.hold) == (JobStatus.WAITING, "budget", 2, Hold.BUDGET)
    assert job.message is not None
    assert figures in job.message
    assert "extend" in job.message
    assert [call.ok for step in stepper.steps(job) for call in step.calls] == [True, True]  # what was done can be read
    assert job.workspace is not None
    stepper.rest()
    assert stepper.job(job).step == 2

    job = extend(stepper, job, **more)
    assert (job.status, job.reason, job.phase) == (JobStatus.RUNNING, None, Phase.PLAN)
    job = stepper.run(job)
    assert (job.status, job.step) == (JobStatus.SUCCEEDED, 5)
    assert [kind for kind in types(stepper, job) if kind.startswith("job.")] == [
        "job.queued", "job.started", "job.pausing", "job.waiting", "job.extended", "job.resumed", "job.succeeded",
    ]  # fmt: skip


def test_a_cost_limit_is_overshot_by_the_decision_in_flight_at_most(make: Make, database: Database) -> None:
    stepper = make([*echoes(4), finish()])
    job = stepper.submit(limits={"cost_usd": "0.5"})
    stepper.ring()
    with database.transaction() as tx:
        tx.connection.execute(update(jobs_table).values(cost_usd=Decimal("0.75")))
    stepper.rest()
    job = stepper.job(job)
    assert (job.reason, job.step) == ("budget", 1)
    assert job.message is not None
    assert "0.75 of the job's 0.5 US dollars" in job.message


def test_an_extension_that_is_not_enough_says_so_and_one_that_lowers_is_refused(make: Make) -> None:
    stepper = make([*echoes(6, input_tokens=100, output_tokens=1), finish()])
    job = stepper.submit(limits={"steps": 2, "tokens": 150})
    stepper.rest()
    job = extend(stepper, job, steps=3)
    assert (job.status, job.limits.steps) == (JobStatus.WAITING, 3)
    assert job.message is not None
    assert "limits.tokens" in job.message
    events = len(stepper.events(job))
    assert extend(stepper, job, steps=3) == stepper.job(job)  # sent again: nothing changes
    assert len(stepper.events(job)) == events
    with pytest.raises(InvalidRequest) as refused:
        extend(stepper, job, steps=2, tokens=1000)
    assert refused.value.param == "limits.steps"
    assert stepper.job(job).limits.tokens == 150
    assert stepper.run(extend(stepper, job, steps=50, tokens=5000)).status is JobStatus.SUCCEEDED


def test_a_running_job_is_extended_before_it_waits_and_an_ended_one_never(make: Make) -> None:
    stepper = make([*echoes(3), finish()])
    job = stepper.submit(limits={"steps": 2})
    stepper.ring()
    assert extend(stepper, job, steps=9).limits.steps == 9
    job = stepper.run(job)
    assert "job.waiting" not in types(stepper, job)
    with pytest.raises(Conflict, match="retry or /fork"):
        extend(stepper, job, steps=20)
    failed = stepper.run(stepper.submit("another", limits={"steps": 1, "on_limit": "fail"}))
    assert (failed.status, failed.reason) == (JobStatus.FAILED, "limit_steps")
    with pytest.raises(Conflict):
        extend(stepper, failed, steps=20)


def test_a_job_out_of_time_finishes_what_runs_and_waits_for_more(make: Make, database: Database, sandbox: CountingSandbox) -> None:
    def late() -> None:
        with database.transaction() as tx:
            tx.connection.execute(update(jobs_table).values(deadline_at=func.now()))
        stepper.scheduler.tick()

    stepper = make([{"calls": [shell("echo one > log"), shell("echo two >> log")]}, finish()])
    job = stepper.submit()
    stepper.ring()
    sandbox.before = late
    stepper.ring()
    sandbox.before = None
    job = stepper.job(job)
    first, second = stepper.steps(job)[0].calls
    assert (first.ok, second.ok) == (True, None)
    assert (job.status, job.reason, job.phase) == (JobStatus.WAITING, "budget", Phase.EXECUTE)
    assert job.message is not None
    assert "3600 seconds of wall time" in job.message
    stepper.rest()
    assert stepper.job(job).status is JobStatus.WAITING
    assert extend(stepper, job, steps=60).status is JobStatus.WAITING
    job = extend(stepper, job, wall_time_s=7200)
    assert job.status is JobStatus.RUNNING
    assert stepper.run(job).status is JobStatus.SUCCEEDED


def test_a_planner_that_waits_out_an_outage_waits_for_time_at_once(make: Make, database: Database) -> None:
    stepper = make([{"error": "server_error"}])
    job = stepper.submit()
    stepper.ring()
    assert types(stepper, job)[-1] == "step.retrying"
    with database.transaction() as tx:
        tx.connection.execute(update(jobs_table).values(deadline_at=func.now()))
    stepper.scheduler.tick()
    assert stepper.job(job).reason == "budget"

    def late(_: object) -> None:
        with database.transaction() as tx:
            tx.connection.execute(update(jobs_table).where(jobs_table.c.id == second.id).values(deadline_at=func.now()))
        stepper.scheduler.tick()

    stepper = make(ScriptedModel([{"error": "server_error"}], on_decide=late))
    second = stepper.submit("asking while its time ends")
    stepper.ring()
    assert types(stepper, second)[-2:] == ["step.retrying", "job.waiting"]


def test_a_job_whose_last_decision_ends_it_needs_no_more_budget(make: Make) -> None:
    stepper = make([shell("echo 1"), finish("there")])
    job = stepper.run(stepper.submit(limits={"steps": 2}, checks=["true"]))
    assert (job.status, job.answer) == (JobStatus.SUCCEEDED, "there")


def test_a_job_that_waits_for_a_budget_can_be_cancelled(make: Make) -> None:
    stepper = make(echoes(3))
    job = stepper.submit(limits={"steps": 1})
    stepper.rest()
    assert cancel(stepper, job)
    assert stepper.job(job).status is JobStatus.CANCELLED


def test_without_the_database_nothing_is_decided(make: Make) -> None:
    model = ScriptedModel([finish()])
    stepper = make(model)
    job = stepper.submit()
    away = Database(DatabaseSettings(url=SecretStr("postgresql+psycopg://nobody@127.0.0.1:1/nothing")))
    base = Runtime(away, stepper.doorbell, stepper.runtime.store, stepper.runtime.registry, PlatformLimits())
    planner = Planner(WorkerRuntime(base, stepper.presence, stepper.leases), model)
    with pytest.raises(DatabaseUnavailable):
        planner.advance(job.id)
    away.close()
    assert model.requests == []  # no decision without a claim, and no claim without a look at the budgets


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


def test_a_job_that_waits_for_a_budget_for_too_long_expires(make: Make, database: Database) -> None:
    stepper = make(echoes(3))
    job = stepper.submit(limits={"steps": 1})
    stepper.rest()
    with database.transaction() as tx:
        tx.connection.execute(update(jobs_table).values(waiting_until=func.now()))
    stepper.scheduler.tick()
    assert (stepper.job(job).status, stepper.job(job).reason) == (JobStatus.EXPIRED, "waited_too_long")
    with database.transaction() as tx, pytest.raises(Conflict):
        ending.request_stop(tx, jobs.get(tx, job.id, lock=True), JobStatus.CANCELLED, by="test")


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


def test_room_that_somebody_makes_just_as_a_job_begins_to_wait_is_found(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    stepper = make([finish()])
    found = [Shortage(Reason.LIMIT_TOKENS, "All is used."), None]
    monkeypatch.setattr(engine_budgets, "shortage", lambda *_, **__: found.pop(0) if found else None)
    monkeypatch.setattr(engine_budgets, "plenty", lambda *_, **__: False)
    job = stepper.submit()
    stepper.ring()
    assert stepper.job(job).status is JobStatus.WAITING
    assert stepper.run(job).status is JobStatus.SUCCEEDED


def test_a_wait_that_is_ended_by_a_transaction_begun_before_it_costs_no_time(make: Make, database: Database) -> None:
    stepper = make([finish()])
    job = stepper.submit()
    before = stepper.job(job).deadline_at
    with database.transaction() as late:
        late.connection.execute(select(func.now()))
        with database.transaction() as tx:
            steering.pause(tx, stepper.runtime, jobs.get(tx, job.id, lock=True), by="test")
        steering.resume(late, stepper.runtime, jobs.get(late, job.id, lock=True), by="test")
    assert stepper.job(job).deadline_at >= before
