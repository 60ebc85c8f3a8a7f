"""Calls that need a person: asked once, bound to their arguments, decided once."""

from __future__ import annotations

import threading

import pytest

from dualtrack.domain.approval import arguments_sha256
from dualtrack.domain.conflicts import ApprovalDecided, OtherArguments
from dualtrack.domain.errors import Conflict, InvalidRequest, NotFound, TooLarge
from dualtrack.domain.lifecycle import CallStatus, JobStatus
from dualtrack.domain.waiting import ApprovalStatus
from dualtrack.engine.approvals import Decisions
from dualtrack.sandbox.sessions import PythonCell
from dualtrack.testing.approvals import ASK_SHELL, asked, decisions, event, settle_down, submit
from dualtrack.testing.scripted_model import ScriptedModel

from .conftest import CountingSandbox, Make, finish, shell, types


def commands(sandbox: CountingSandbox) -> list[str]:
    return [what.source if isinstance(what, PythonCell) else " ".join(what.argv) for what in sandbox.ran]


def test_an_asked_call_waits_and_runs_once_it_is_approved(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([shell("echo secret-sauce"), finish()])
    job = submit(stepper)
    assert (job.status, job.reason, sandbox.ran) == (JobStatus.WAITING, "approval", [])
    (request,) = asked(stepper, job)
    assert (request.tool, request.arguments, request.message) == ("shell", {"command": "echo secret-sauce"}, "Shell needs a look")
    assert request.arguments_sha256 == arguments_sha256(request.arguments)
    for _ in range(3):  # time does not help
        stepper.time_passes()
        stepper.scheduler.tick()
        settle_down(stepper)
    assert sandbox.ran == []

    by = decisions(stepper)
    approved = by.approve(request.id, sha256=request.arguments_sha256, note="fine")
    assert (approved.status, approved.decided_by_name, approved.note) == (ApprovalStatus.APPROVED, "ops", "fine")
    assert by.approve(request.id) == approved  # again: nothing
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert len(sandbox.ran) == 1
    assert "secret-sauce" in stepper.steps(job)[0].calls[0].preview
    seen = types(stepper, job)
    assert [name for name in seen if name.startswith("approval")] == ["approval.requested", "approval.decided"]
    assert event(stepper, job, "approval.decided")["by_name"] == "ops"


def test_calls_of_the_wave_that_need_nobody_run_at_once(make: Make) -> None:
    reads = [{"tool": "list_files", "arguments": {"path": "."}}, {"tool": "read_artifact", "arguments": {"call_id": "call_x"}}]
    agent = {"policies": [{"tool": "read_artifact", "action": "ask"}]}
    stepper = make([{"calls": [*reads, shell("echo behind")]}, finish()])
    job = submit(stepper, agent)
    first, second, third = stepper.steps(job)[0].calls
    assert (first.status, second.status, third.status) == (CallStatus.SUCCEEDED, CallStatus.PENDING, CallStatus.PENDING)
    assert job.status is JobStatus.WAITING
    decisions(stepper).approve(asked(stepper, job)[0].id)
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert stepper.steps(job)[0].calls[2].status is CallStatus.SUCCEEDED


def test_several_approvals_in_one_step_each_let_through_their_own(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([{"calls": [shell("echo one"), shell("echo two"), shell("echo one")]}, finish()])
    job = submit(stepper)
    requests = asked(stepper, job)
    assert len({request.call_id for request in requests}) == 3
    by = decisions(stepper)
    by.approve(requests[1].id)
    settle_down(stepper)
    assert sandbox.ran == []  # the first one comes first
    by.approve(requests[0].id)
    settle_down(stepper)
    assert len(sandbox.ran) == 2  # the third is the first's twin, and waits for its own
    assert stepper.job(job).status is JobStatus.WAITING
    by.deny(requests[2].id, reason="twice is too much")
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert len(sandbox.ran) == 2
    last = stepper.steps(job)[0].calls[2]
    assert (last.ok, last.preview) == (False, "Denied by a person, not run: twice is too much")


def test_an_approval_while_another_call_of_the_wave_runs(make: Make, sandbox: CountingSandbox) -> None:
    reads = [{"tool": "search_files", "arguments": {"pattern": "x"}}, {"tool": "list_files", "arguments": {"path": "."}}]
    stepper = make([{"calls": reads}, finish()])
    job = stepper.submit(agent={"policies": [{"tool": "list_files", "action": "ask"}]})
    stepper.ring()
    by = decisions(stepper)
    (request,) = asked(stepper, job)
    assert stepper.job(job).status is JobStatus.RUNNING  # the other call may run

    def approve() -> None:
        sandbox.before = None
        by.approve(request.id)

    sandbox.before = approve
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert len(sandbox.ran) == 2
    assert "job.waiting" not in types(stepper, job)


def test_the_agent_reads_why_it_was_denied(make: Make, sandbox: CountingSandbox) -> None:
    model = ScriptedModel([shell("rm -rf data"), finish()])
    stepper = make(model)
    job = submit(stepper)
    (request,) = asked(stepper, job)
    by = decisions(stepper)
    denied = by.deny(request.id, reason="the data is needed")
    assert by.deny(request.id, reason="again") == denied
    with pytest.raises(ApprovalDecided, match="denied"):
        by.approve(request.id)
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert model.requests[1].steps[0].calls[0].observation == "Denied by a person, not run: the data is needed"
    assert sandbox.ran == []


def test_edited_arguments_are_checked_run_and_recorded(make: Make, sandbox: CountingSandbox) -> None:
    rules = [{"tool": "shell", "arguments": {"command": "sudo"}, "action": "deny", "message": "No sudo."}, *ASK_SHELL["policies"]]
    stepper = make([shell("echo original"), finish()])
    job = submit(stepper, {"policies": rules})
    (request,) = asked(stepper, job)
    by = decisions(stepper)
    with pytest.raises(InvalidRequest) as wrong:
        by.approve(request.id, arguments={"command": 7})
    assert wrong.value.param == "arguments.command"
    with pytest.raises(InvalidRequest, match="No sudo"):
        by.approve(request.id, arguments={"command": "sudo ls"})
    with pytest.raises(TooLarge):
        by.approve(request.id, arguments={"command": "x" * 300_000})
    with pytest.raises(OtherArguments, match="not the arguments"):
        by.approve(request.id, sha256="0" * 64)
    edited = {"command": "echo edited"}
    approved = by.approve(request.id, sha256=request.arguments_sha256, arguments=edited)
    assert by.approve(request.id, sha256=request.arguments_sha256, arguments=edited) == approved
    assert (approved.arguments, approved.edited_arguments) == ({"command": "echo original"}, edited)
    with pytest.raises(Conflict):
        by.approve(request.id)
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert [("original" in ran, "edited" in ran) for ran in commands(sandbox)] == [(False, True)]
    assert stepper.steps(job)[0].calls[0].arguments == edited
    decided = event(stepper, job, "approval.decided")
    assert (decided["arguments"], decided["arguments_sha256"]) == (edited, arguments_sha256(edited))


def test_another_tenants_approval_is_none(make: Make) -> None:
    stepper = make([shell("x"), finish()])
    job = submit(stepper)
    (request,) = asked(stepper, job)
    stranger = Decisions(stepper.runtime, tenant_id="ten_other", by="key_other")
    with pytest.raises(NotFound):
        stranger.approve(request.id)
    with pytest.raises(NotFound):
        stranger.deny(request.id, reason="x")
    assert stepper.job(job).status is JobStatus.WAITING


def test_two_people_at_once_decide_once(make: Make) -> None:
    stepper = make([shell("echo x"), finish()])
    job = submit(stepper)
    (request,) = asked(stepper, job)
    by = decisions(stepper)
    outcomes: list[str] = []

    def decide(approve: bool) -> None:
        try:
            found = by.approve(request.id) if approve else by.deny(request.id, reason="no")
            outcomes.append(found.status)
        except Conflict:
            outcomes.append("conflict")

    threads = [threading.Thread(target=decide, args=(n % 2 == 0,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("conflict") == 3
    assert len(set(outcomes)) == 2
    assert types(stepper, job).count("approval.decided") == 1
