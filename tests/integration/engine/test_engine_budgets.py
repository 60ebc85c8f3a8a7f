"""A limit that is reached lets the job wait, whole and readable, until it is extended."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import func, select, update

from dualtrack.db import jobs
from dualtrack.db.engine import Database
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.domain.budgets import Shortage
from dualtrack.domain.conflicts import JobEnded
from dualtrack.domain.errors import Conflict, DatabaseUnavailable, InvalidRequest
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import JobStatus, Phase
from dualtrack.domain.limits import LimitsChange, PlatformLimits
from dualtrack.domain.reasons import Reason
from dualtrack.domain.waiting import Hold
from dualtrack.engine import budgets as engine_budgets
from dualtrack.engine import ending, extension, steering
from dualtrack.engine.planner import Planner
from dualtrack.engine.runtime import Runtime, WorkerRuntime
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
    with pytest.raises(JobEnded, match="retry or /fork"):
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
