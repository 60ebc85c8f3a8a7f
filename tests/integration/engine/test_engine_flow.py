"""Holding a job and letting it go on: at every boundary, with crashes, with other things waited for, and for too long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import func, select, text, update

from dualtrack.db import jobs
from dualtrack.db.engine import Database
from dualtrack.db.tables import calls as calls_table
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.domain.conflicts import JobEnded, JobStopping, JobWaits
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import CallStatus, JobStatus, Phase
from dualtrack.domain.waiting import Hold
from dualtrack.engine import flow, steering
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.testing.stepper import Stepper

from .conftest import CountingSandbox, Make, cancel, finish, shell, types

READ = {"tool": "read_file", "arguments": {"path": "a"}}


def pause(stepper: Stepper, job: Job) -> Job:
    with stepper.runtime.database.transaction() as tx:
        steering.pause(tx, stepper.runtime, jobs.get(tx, job.id, lock=True), by="test")
    return stepper.job(job)


def resume(stepper: Stepper, job: Job) -> Job:
    with stepper.runtime.database.transaction() as tx:
        steering.resume(tx, stepper.runtime, jobs.get(tx, job.id, lock=True), by="test")
    return stepper.job(job)


def rest(stepper: Stepper) -> None:
    """Let everything happen that can, the scheduler's part too, several times over."""
    for _ in range(4):
        while stepper.ring():
            pass
        stepper.time_passes()
        stepper.scheduler.tick()
    while stepper.ring():
        pass


def once(action: Callable[[], Any]) -> Callable[..., None]:
    done: list[Any] = []

    def act(*_: object) -> None:
        if not done:
            done.append(None)
            action()

    return act


def paused(job: Job) -> bool:
    return (job.status, job.reason, job.hold) == (JobStatus.WAITING, "paused", Hold.PAUSED)


def set_time(database: Database, **values: Any) -> None:
    with database.transaction() as tx:
        tx.connection.execute(update(jobs_table).values(**values))


def test_a_job_paused_in_the_queue_waits_at_once_and_goes_back_to_it(make: Make) -> None:
    stepper = make([finish()])
    job = stepper.submit()
    assert paused(pause(stepper, job))
    rest(stepper)
    assert paused(stepper.job(job))
    assert stepper.job(job).started_at is None
    job = resume(stepper, job)
    assert (job.status, job.reason, job.message, job.hold, job.waiting_since) == (JobStatus.QUEUED, None, None, None, None)
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert types(stepper, job)[:5] == ["job.queued", "job.pausing", "job.waiting", "job.resumed", "job.started"]


def test_a_decision_under_way_is_kept_and_its_calls_wait(make: Make, sandbox: CountingSandbox) -> None:
    seen = []
    model = ScriptedModel([shell("touch a"), finish()], on_decide=once(lambda: seen.append(pause(stepper, job))))
    stepper = make(model)
    job = stepper.submit()
    stepper.ring()
    assert (seen[0].status, seen[0].hold) == (JobStatus.RUNNING, Hold.PAUSED)  # somebody was at work
    rest(stepper)
    job = stepper.job(job)
    assert paused(job)
    assert (job.step, job.phase, sandbox.ran) == (1, Phase.EXECUTE, [])
    resume(stepper, job)
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert (len(sandbox.ran), len(model.requests)) == (1, 2)


def test_a_decision_to_finish_ends_a_held_job(make: Make) -> None:
    stepper = make(ScriptedModel([finish()], on_decide=once(lambda: pause(stepper, job))))
    job = stepper.submit()
    stepper.ring()
    assert stepper.job(job).status is JobStatus.SUCCEEDED


def test_a_running_call_is_finished_and_the_next_wave_waits(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([{"calls": [shell("echo 1 >> log"), shell("echo 2 >> log")]}, shell("cat log"), finish()])
    job = stepper.submit()
    stepper.ring()
    sandbox.before = once(lambda: pause(stepper, job))
    stepper.ring()
    assert paused(stepper.job(job))
    rest(stepper)
    assert [call.status for call in stepper.steps(job)[0].calls] == [CallStatus.SUCCEEDED, CallStatus.PENDING]
    resume(stepper, job)
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert stepper.steps(job)[1].calls[0].preview.split() == ["1", "2"]


def test_a_pause_between_two_waves_takes_the_next_one_back(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([{"calls": [shell("echo 1 >> log"), shell("echo 2 >> log")]}, finish()])
    job = stepper.submit()
    stepper.ring()
    stepper.ring()  # the first call; the second is rung
    assert paused(pause(stepper, job))
    rest(stepper)
    assert len(sandbox.ran) == 1
    resume(stepper, job)
    resume(stepper, job)  # asked twice: nothing twice
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert len(sandbox.ran) == 2


def test_of_parallel_calls_those_at_work_are_finished(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([{"calls": [READ, READ, READ]}, finish()])
    job = stepper.submit()
    stepper.ring()
    states = []
    other = stepper.doorbell.rings[1][1]

    def look() -> None:  # while the first one runs, a second one is begun; then the pause is asked for, while both are at work
        sandbox.before = once(lambda: states.append(pause(stepper, job).status))
        stepper.executor.run(other)
        states.append(stepper.job(job).status)

    sandbox.before = once(look)
    stepper.ring()
    assert states == [JobStatus.RUNNING, JobStatus.RUNNING]
    assert paused(stepper.job(job))
    assert [call.status for call in stepper.steps(job)[0].calls].count(CallStatus.PENDING) == 1
    rest(stepper)
    assert len(sandbox.ran) == 2
    resume(stepper, job)
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert len(sandbox.ran) == 3


def test_a_pause_taken_back_before_its_boundary_is_as_if_it_had_not_been(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([{"calls": [shell("true"), shell("true")]}, finish()])
    job = stepper.submit()
    stepper.ring()

    def there_and_back() -> None:
        pause(stepper, job)
        resume(stepper, job)

    sandbox.before = once(there_and_back)
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    seen = types(stepper, job)
    assert "job.waiting" not in seen
    assert (seen.count("job.pausing"), seen.count("job.resumed")) == (1, 1)


def test_asking_again_changes_nothing(make: Make) -> None:
    stepper = make([shell("true"), finish()])
    job = stepper.submit()
    stepper.ring()
    first = pause(stepper, job)
    assert pause(stepper, job) == first
    resume(stepper, job)
    seen = types(stepper, job)
    resume(stepper, job)
    assert types(stepper, job) == seen
    assert stepper.run(job).status is JobStatus.SUCCEEDED


def test_two_pauses_and_two_resumptions(make: Make) -> None:
    stepper = make([shell("true"), shell("true"), finish()])
    job = stepper.submit()
    for _ in range(2):
        stepper.ring()
        assert paused(pause(stepper, job))
        resume(stepper, job)
        stepper.ring()
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    seen = types(stepper, job)
    assert (seen.count("job.waiting"), seen.count("job.resumed")) == (2, 2)


def test_a_pause_after_a_provider_failed_waits_for_no_backoff(make: Make) -> None:
    script = [{**finish(), "error": "rate_limited", "times": 1}]
    model = ScriptedModel(script, on_decide=once(lambda: pause(stepper, job)))
    stepper = make(model, backoff_s=1000, backoff_max_s=1000)
    job = stepper.submit()
    stepper.ring()
    assert paused(stepper.job(job))
    resume(stepper, job)
    assert stepper.ring()
    assert stepper.job(job).status is JobStatus.SUCCEEDED


def test_a_pause_during_a_backoff(make: Make) -> None:
    stepper = make([{**finish(), "error": "rate_limited", "times": 1}], backoff_s=1000, backoff_max_s=1000)
    job = stepper.submit()
    stepper.ring()
    assert stepper.job(job).failures == 1
    assert paused(pause(stepper, job))
    resume(stepper, job)
    assert stepper.ring()
    assert stepper.job(job).status is JobStatus.SUCCEEDED


def test_a_call_whose_sandbox_failed_waits_for_no_backoff_in_a_held_job(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([shell("true"), finish()], backoff_s=1000, backoff_max_s=1000)
    job = stepper.submit()
    stepper.ring()
    sandbox.failures = 1
    sandbox.before = once(lambda: pause(stepper, job))
    stepper.ring()
    assert paused(stepper.job(job))
    resume(stepper, job)
    stepper.ring()
    stepper.ring()
    assert stepper.job(job).status is JobStatus.SUCCEEDED


@pytest.mark.parametrize("resumed", [False, True])
def test_a_worker_that_dies_in_a_held_call(make: Make, database: Database, *, resumed: bool) -> None:
    """The call is begun again once the job goes on, whether or not anybody noticed the death before."""
    stepper = make([shell("echo x >> log"), shell("cat log"), finish()])
    job = stepper.submit()
    stepper.ring()
    with database.transaction() as tx:
        values = {"status": "running", "owner": 1 << 60, "lease_until": func.now() + text("interval '1 hour'")}
        tx.connection.execute(update(calls_table).values(**values))
    pause(stepper, job)
    if not resumed:
        rest(stepper)
        assert paused(stepper.job(job))
        assert stepper.steps(job)[0].calls[0].status is CallStatus.PENDING
    resume(stepper, job)
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert stepper.steps(job)[1].calls[0].preview.split() == ["x"]


def test_a_planner_that_dies_in_a_held_job(make: Make) -> None:
    def die(*_: object) -> None:
        pause(stepper, job)
        raise KeyboardInterrupt

    model = ScriptedModel([finish()], on_decide=once(die))
    stepper = make(model)
    job = stepper.submit()
    with pytest.raises(KeyboardInterrupt):
        stepper.ring()
    stepper.leases_run_out()
    assert stepper.job(job).status is JobStatus.RUNNING
    rest(stepper)
    assert paused(stepper.job(job))
    resume(stepper, job)
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert len(model.requests) == 2


def test_cancel_ends_a_held_job(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([shell("sleep 60"), finish()])
    job = stepper.submit()
    pause(stepper, job)
    cancel(stepper, job)
    assert stepper.job(job).status is JobStatus.CANCELLED
    with pytest.raises(JobEnded, match="ended"):
        resume(stepper, job)
    with pytest.raises(JobEnded, match="ended"):
        pause(stepper, job)

    job = stepper.submit("another")
    while stepper.doorbell.rings[0][0] == "plan":
        stepper.ring()

    def both() -> None:
        pause(stepper, job)
        cancel(stepper, job)
        with pytest.raises(JobStopping, match="told to stop"):
            resume(stepper, job)

    sandbox.before = once(both)
    stepper.ring()
    assert stepper.job(job).status is JobStatus.CANCELLED
    assert "job.waiting" not in types(stepper, job)


def test_wall_time_does_not_run_while_a_job_waits(make: Make, database: Database) -> None:
    stepper = make([finish()])
    job = stepper.submit(limits={"wall_time_s": 100})
    pause(stepper, job)
    day = text("interval '1 day'")
    set_time(database, deadline_at=jobs_table.c.deadline_at - day, waiting_since=jobs_table.c.waiting_since - day)
    stepper.scheduler.tick()
    assert paused(stepper.job(job))
    job = resume(stepper, job)
    assert 90 < (job.deadline_at - job.created_at).total_seconds() < 110
    assert stepper.run(job).status is JobStatus.SUCCEEDED


def test_a_deadline_that_passes_while_a_held_call_is_finished_waits_for_the_resumption(make: Make, database: Database) -> None:
    stepper = make([finish()])
    job = stepper.submit(limits={"on_limit": "fail"})
    pause(stepper, job)
    set_time(database, deadline_at=func.now() - text("interval '1 second'"))
    stepper.scheduler.tick()
    assert paused(stepper.job(job))
    resume(stepper, job)
    stepper.scheduler.tick()
    job = stepper.job(job)
    assert (job.status, job.reason) == (JobStatus.EXPIRED, "limit_wall_time")


def test_a_wait_that_is_too_long_expires(make: Make, database: Database) -> None:
    stepper = make([shell("true"), finish()], waiting_s=3600)
    job = stepper.submit()
    stepper.ring()
    job = pause(stepper, job)
    assert job.waiting_since is not None
    assert job.waiting_until is not None
    assert (job.waiting_until - job.waiting_since).total_seconds() == pytest.approx(3600, abs=1)
    stepper.scheduler.tick()
    assert paused(stepper.job(job))
    set_time(database, waiting_until=func.now())
    stepper.scheduler.tick()
    job = stepper.job(job)
    assert (job.status, job.reason, job.waiting_since, job.hold) == (JobStatus.EXPIRED, "waited_too_long", None, None)
    assert [call.status for call in stepper.steps(job)[0].calls] == [CallStatus.CANCELLED]
    assert types(stepper, job)[-1] == "job.expired"


def test_a_pause_while_waiting_for_approval_outlasts_the_approval(make: Make, database: Database, sandbox: CountingSandbox) -> None:
    stepper = make([shell("true"), finish()])
    job = stepper.submit()
    stepper.ring()
    with database.transaction() as tx:
        call_id = tx.connection.execute(select(calls_table.c.id)).scalar_one()
        tx.connection.execute(update(calls_table).values(held="approval", due_at=None))
        flow.go_on(tx, stepper.runtime, jobs.get(tx, job.id, lock=True))
    assert (stepper.job(job).status, stepper.job(job).reason) == (JobStatus.WAITING, "approval")
    with pytest.raises(JobWaits, match="decide its open approvals"):
        resume(stepper, job)
    assert paused(pause(stepper, job))
    resume(stepper, job)
    assert (stepper.job(job).status, stepper.job(job).reason) == (JobStatus.WAITING, "approval")
    since = stepper.job(job).waiting_since
    assert paused(pause(stepper, job))
    assert stepper.job(job).waiting_since == since
    with database.transaction() as tx:
        locked = jobs.get(tx, job.id, lock=True)
        tx.connection.execute(update(calls_table).where(calls_table.c.id == call_id).values(held=None))
        flow.go_on(tx, stepper.runtime, locked)
    rest(stepper)
    assert paused(stepper.job(job))
    assert not sandbox.ran
    resume(stepper, job)
    assert stepper.run(job).status is JobStatus.SUCCEEDED


def test_a_job_held_by_its_budget_is_neither_paused_nor_resumed(make: Make) -> None:
    stepper = make([finish()])
    job = stepper.submit()
    with stepper.runtime.database.transaction() as tx:
        assert flow.hold(tx, stepper.runtime, jobs.get(tx, job.id, lock=True), Hold.BUDGET, by="test")
    assert stepper.job(job).reason == "budget"
    for ask in (pause, resume):
        with pytest.raises(JobWaits, match="extend"):
            ask(stepper, job)
