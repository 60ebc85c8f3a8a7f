"""While an approval waits: nobody decides, the job is paused, it ends or is told to stop."""

from __future__ import annotations

import pytest
from sqlalchemy import func, update

from dualtrack.db import jobs
from dualtrack.db.engine import Database
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.domain.conflicts import ApprovalExpired, ApprovalWithdrawn
from dualtrack.domain.errors import Conflict
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.domain.waiting import Hold
from dualtrack.engine import flow
from dualtrack.testing.approvals import asked, decisions, event, lapse, settle_down, submit

from .conftest import CountingSandbox, Make, cancel, finish, shell, types


def test_nobody_decides_in_time(make: Make, database: Database, sandbox: CountingSandbox) -> None:
    stepper = make([{"calls": [shell("echo a"), shell("echo b")]}, finish()])
    job = submit(stepper)
    (first, second) = asked(stepper, job)
    lapse(database)
    with pytest.raises(ApprovalExpired, match="expired"):
        decisions(stepper).approve(first.id)
    stepper.scheduler.tick()
    assert [call.ok for call in stepper.steps(job)[0].calls] == [False, False]
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert "nobody decided in time" in stepper.steps(job)[0].calls[0].preview
    assert sandbox.ran == []
    with pytest.raises(ApprovalExpired, match="expired"):
        decisions(stepper).deny(second.id, reason="late")
    assert event(stepper, job, "approval.decided")["by"] == "scheduler"


def test_a_job_waits_as_long_as_somebody_may_decide(make: Make, database: Database) -> None:
    rule = {"tool": "shell", "action": "ask", "expires_s": 3600}
    stepper = make([shell("true"), finish()], waiting_s=10)
    job = submit(stepper, {"policies": [rule]})
    (request,) = asked(stepper, job)
    assert job.waiting_until == request.expires_at
    with database.transaction() as tx:
        tx.connection.execute(update(jobs_table).values(waiting_until=func.now()))
    stepper.scheduler.tick()
    assert stepper.job(job).status is JobStatus.WAITING


def test_a_paused_job_takes_the_decision_and_runs_when_resumed(make: Make, sandbox: CountingSandbox, database: Database) -> None:
    stepper = make([shell("echo x"), finish()])
    job = submit(stepper)
    with database.transaction() as tx:
        flow.hold(tx, stepper.runtime, jobs.get(tx, job.id, lock=True), Hold.PAUSED, by="test")
    assert stepper.job(job).reason == "paused"
    decisions(stepper).approve(asked(stepper, job)[0].id)
    settle_down(stepper)
    assert (stepper.job(job).reason, sandbox.ran) == ("paused", [])
    with database.transaction() as tx:
        flow.release(tx, stepper.runtime, jobs.get(tx, job.id, lock=True), by="test")
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert len(sandbox.ran) == 1


def test_a_job_that_ends_withdraws_what_it_asked(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([shell("echo x"), finish()])
    job = submit(stepper)
    (request,) = asked(stepper, job)
    cancel(stepper, job)
    assert types(stepper, job)[-3:] == ["approval.decided", "call.cancelled", "job.cancelled"]
    with pytest.raises(ApprovalWithdrawn, match=r"withdrawn: the job has ended: cancelled\.$"):
        decisions(stepper).approve(request.id)
    settle_down(stepper)
    assert sandbox.ran == []


def test_a_job_told_to_stop_withdraws_at_once_while_another_call_still_runs(make: Make, sandbox: CountingSandbox) -> None:
    reads = [{"tool": "search_files", "arguments": {"pattern": "x"}}, {"tool": "list_files", "arguments": {"path": "."}}]
    stepper = make([{"calls": reads}, finish()])
    job = stepper.submit(agent={"policies": [{"tool": "list_files", "action": "ask"}]})
    stepper.ring()
    (request,) = asked(stepper, job)

    def stop() -> None:
        cancel(stepper, job)

    sandbox.before = stop
    settle_down(stepper)
    assert stepper.job(job).status is JobStatus.CANCELLED
    with pytest.raises(Conflict):
        decisions(stepper).approve(request.id)
