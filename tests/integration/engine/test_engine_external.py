"""External calls: made once, and never silently again when nobody knows whether they happened."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, update

from dualtrack.db import approvals
from dualtrack.db.engine import Database
from dualtrack.db.tables import approvals as approvals_table
from dualtrack.domain.approval import Resolution
from dualtrack.domain.conflicts import OtherApprovalKind
from dualtrack.domain.errors import AnswerBroken, Conflict, HostUnreachable, StorageUnavailable
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import CallStatus, JobStatus
from dualtrack.domain.waiting import Held
from dualtrack.engine.approvals import Decisions
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.payments import PAY, Pay, breaks, once, only_call, take_over, take_over_without_tools
from dualtrack.testing.stepper import Stepper
from dualtrack.tools.registry import TOOLS, Registry

from .conftest import Make, finish, types

AGENT = {"tools": ["pay", "finish"]}


@pytest.fixture
def stepper(make: Make, pay: Pay) -> Stepper:
    return make([PAY, finish()], registry=Registry((*TOOLS, pay)))


def test_a_call_is_made_once_under_its_own_id(stepper: Stepper, pay: Pay) -> None:
    job = stepper.submit(agent=AGENT)
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    call = only_call(stepper, job)
    assert pay.keys == [call.id]
    assert (call.status, call.preview) == (CallStatus.SUCCEEDED, "paid")
    assert call.intent_at is not None


def test_a_call_in_doubt_is_told_to_the_agent_and_not_made_again(stepper: Stepper, pay: Pay) -> None:
    job = stepper.submit(agent=AGENT)
    pay.then = take_over(stepper, job)
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    call = only_call(stepper, job)
    assert len(pay.keys) == 1
    assert (call.ok, call.details) == (False, {"outcome": "unknown"})
    assert "may or may not have happened" in call.preview
    assert types(stepper, job).count("call.in_doubt") == 1
    assert types(stepper, job).count("call.finished") == 2  # this one and `finish`


def test_an_answer_that_never_came_is_a_doubt_too(stepper: Stepper, pay: Pay) -> None:
    job = stepper.submit(agent=AGENT)
    pay.then = breaks(AnswerBroken("cut off"))
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert len(pay.keys) == 1
    assert only_call(stepper, job).details == {"outcome": "unknown"}


@pytest.mark.parametrize("error", [AnswerBroken("cut off"), RuntimeError("a fault of the tool")])
def test_with_retry_it_is_made_again_under_the_same_key(stepper: Stepper, pay: Pay, error: Exception) -> None:
    job = stepper.submit(agent=AGENT | {"on_unknown": "retry"})
    pay.then = breaks(error)
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    call = only_call(stepper, job)
    assert pay.keys == [call.id, call.id]
    assert call.preview == "paid"


def test_with_fail_the_job_fails(stepper: Stepper, pay: Pay) -> None:
    job = stepper.submit(agent=AGENT | {"on_unknown": "fail"})
    pay.then = breaks(AnswerBroken("cut off"))
    ended = stepper.run(job)
    assert (ended.status, ended.reason) == (JobStatus.FAILED, "outcome_unknown")
    assert len(pay.keys) == 1


@pytest.fixture
def doubtful(stepper: Stepper, pay: Pay) -> Job:
    """A job that asks whether its payment happened."""
    job = stepper.submit(agent=AGENT | {"on_unknown": "ask"})
    pay.then = take_over(stepper, job)
    while stepper.ring():
        pass
    stepper.time_passes()
    stepper.scheduler.tick()
    return stepper.job(job)


def resolve(stepper: Stepper, job: Job, outcome: Resolution, observation: str | None = None) -> None:
    with stepper.runtime.database.transaction() as tx:
        (asked,) = approvals.pending(tx, job.id)
    decisions = Decisions(stepper.runtime, tenant_id=stepper.tenant_id, by="key_test")
    found = decisions.resolve(asked.id, outcome, observation=observation)
    assert decisions.resolve(asked.id, outcome) == found
    other = Resolution.HAPPENED if outcome is not Resolution.HAPPENED else Resolution.RETRY
    with pytest.raises(Conflict):
        decisions.resolve(asked.id, other)
    with pytest.raises(OtherApprovalKind, match="resolve it"):
        decisions.approve(asked.id)


def test_with_ask_the_job_waits_for_a_person(stepper: Stepper, pay: Pay, doubtful: Job) -> None:
    assert (doubtful.status, doubtful.reason) == (JobStatus.WAITING, "approval")
    assert only_call(stepper, doubtful).held is Held.UNKNOWN
    assert not stepper.doorbell.rings
    assert len(pay.keys) == 1
    assert "approval.requested" in types(stepper, doubtful)


@pytest.mark.parametrize(("outcome", "ok"), [(Resolution.HAPPENED, True), (Resolution.NOT_HAPPENED, False)])
def test_a_person_says_what_happened(stepper: Stepper, pay: Pay, doubtful: Job, outcome: Resolution, ok: bool) -> None:
    resolve(stepper, doubtful, outcome, "receipt 17")
    assert stepper.run(doubtful).status is JobStatus.SUCCEEDED
    call = only_call(stepper, doubtful)
    assert (call.ok, call.preview, len(pay.keys)) == (ok, "receipt 17", 1)


def test_a_person_has_it_made_again_under_the_same_key(stepper: Stepper, pay: Pay, doubtful: Job) -> None:
    resolve(stepper, doubtful, Resolution.RETRY)
    assert stepper.run(doubtful).status is JobStatus.SUCCEEDED
    call = only_call(stepper, doubtful)
    assert (pay.keys, call.preview) == ([call.id, call.id], "paid")


def test_a_person_has_the_job_fail(stepper: Stepper, pay: Pay, doubtful: Job) -> None:
    resolve(stepper, doubtful, Resolution.FAIL)
    job = stepper.job(doubtful)
    assert (job.status, job.reason, len(pay.keys)) == (JobStatus.FAILED, "outcome_unknown", 1)


def test_nobody_says_what_happened(stepper: Stepper, pay: Pay, doubtful: Job, database: Database) -> None:
    with database.transaction() as tx:
        tx.connection.execute(update(approvals_table).values(expires_at=func.now()))
    stepper.scheduler.tick()
    assert stepper.run(doubtful).status is JobStatus.SUCCEEDED
    call = only_call(stepper, doubtful)
    assert (call.ok, len(pay.keys)) == (False, 1)
    assert "nobody said in time" in call.preview


def test_a_rule_says_what_becomes_of_a_doubt_before_the_agent_does(stepper: Stepper, pay: Pay) -> None:
    rules = [{"tool": "pay", "action": "allow", "on_unknown": "fail"}]
    job = stepper.submit(agent=AGENT | {"on_unknown": "retry", "policies": rules})
    pay.then = breaks(AnswerBroken("cut off"))
    assert stepper.run(job).reason == "outcome_unknown"
    assert len(pay.keys) == 1


def test_what_surely_did_not_happen_is_simply_done_again(stepper: Stepper, pay: Pay) -> None:
    job = stepper.submit(agent=AGENT)
    pay.before = breaks(HostUnreachable("no route"))
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert len(pay.keys) == 1
    assert only_call(stepper, job).preview == "paid"
    assert "call.in_doubt" not in types(stepper, job)


def test_a_failure_before_the_intent_leaves_no_doubt(
    stepper: Stepper, pay: Pay, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workspace can't be restored: the call has not been begun."""
    from dualtrack.objects.workspace import WorkspaceStore

    job = stepper.submit(agent=AGENT)
    restore = WorkspaceStore.restore
    fails = breaks(StorageUnavailable("away"))

    def failing(self: WorkspaceStore, *arguments: Any, **more: Any) -> Any:
        fails()
        return restore(self, *arguments, **more)

    monkeypatch.setattr(WorkspaceStore, "restore", failing)
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert len(pay.keys) == 1
    assert only_call(stepper, job).preview == "paid"


def test_a_job_cancelled_during_a_call_says_that_it_may_have_happened(stepper: Stepper, pay: Pay) -> None:
    from .conftest import cancel

    job = stepper.submit(agent=AGENT)

    def stop() -> None:
        cancel(stepper, job)
        raise AnswerBroken("stopped while its request was under way: it may have been carried out")

    pay.then = once(stop)
    assert stepper.run(job).status is JobStatus.CANCELLED
    call = only_call(stepper, job)
    assert call.status is CallStatus.CANCELLED
    assert "may or may not have happened" in call.preview
    assert len(pay.keys) == 1


def test_a_call_in_doubt_whose_tool_is_gone_is_in_doubt_all_the_same(stepper: Stepper, pay: Pay, monkeypatch: pytest.MonkeyPatch) -> None:
    job = stepper.submit(agent=AGENT)
    pay.then = take_over_without_tools(stepper, job, monkeypatch)
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert only_call(stepper, job).details == {"outcome": "unknown"}
    assert len(pay.keys) == 1
