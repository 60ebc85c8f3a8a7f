"""Calls that need a person: asked once, bound to their arguments, decided once."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from sqlalchemy import func, select, text, update

from dualtrack.db import approvals as rows
from dualtrack.db import jobs
from dualtrack.db.engine import Database
from dualtrack.db.tables import api_keys
from dualtrack.db.tables import approvals as approvals_table
from dualtrack.db.tables import calls as calls_table
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.db.tenants import create_key
from dualtrack.domain.approval import Approval, arguments_sha256
from dualtrack.domain.errors import Conflict, InvalidRequest, NotFound, TooLarge
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import CallStatus, JobStatus
from dualtrack.domain.policy import PolicyRule
from dualtrack.domain.waiting import ApprovalStatus, Hold
from dualtrack.engine import flow
from dualtrack.engine.approvals import Decisions
from dualtrack.models.port import DecisionRequest
from dualtrack.sandbox.sessions import PythonCell
from dualtrack.testing.model_script import Script
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.testing.stepper import Stepper

from .conftest import CountingSandbox, Make, cancel, finish, shell, types

ASK_SHELL = {"policies": [{"tool": "shell", "action": "ask", "message": "Shell needs a look."}]}
QUESTION = {"tool": "ask_human", "arguments": {"question": "Which colour?", "options": ["red", "blue"]}}
ASKING = {"tools": ["ask_human", "shell", "finish"]}


def settle_down(stepper: Stepper) -> None:
    """Every ring arrives, and nothing else happens."""
    while stepper.ring():
        pass


def asked(stepper: Stepper, job: Job) -> list[Approval]:
    with stepper.runtime.database.transaction() as tx:
        return rows.pending(tx, job.id)


def decisions(stepper: Stepper) -> Decisions:
    with stepper.runtime.database.transaction() as tx:
        create_key(tx, stepper.tenant_id, "ops")
        key_id = tx.connection.execute(api_keys.select().where(api_keys.c.name == "ops")).first()
    assert key_id is not None
    return Decisions(stepper.runtime, tenant_id=stepper.tenant_id, by=key_id.id)


def submit(stepper: Stepper, agent: dict[str, Any] = ASK_SHELL, **more: Any) -> Job:
    """A job at the point where all that can be done without a person is done."""
    job = stepper.submit(agent=agent, **more)
    settle_down(stepper)
    return stepper.job(job)


def commands(sandbox: CountingSandbox) -> list[str]:
    return [what.source if isinstance(what, PythonCell) else " ".join(what.argv) for what in sandbox.ran]


def event(stepper: Stepper, job: Job, kind: str) -> dict[str, Any]:
    return [dict(event.data) for event in stepper.events(job) if event.type == kind][-1]


def lapse(database: Database) -> None:
    with database.transaction() as tx:
        tx.connection.execute(update(approvals_table).values(expires_at=func.now() - text("interval '1 second'")))


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
    with pytest.raises(Conflict, match="denied"):
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
    with pytest.raises(Conflict, match="not the arguments"):
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


def test_policy_denies_without_asking_and_the_operator_comes_first(make: Make, sandbox: CountingSandbox) -> None:
    operator = (
        PolicyRule.model_validate({"tool": "shell", "arguments": {"command": r"\bcurl\b"}, "action": "deny", "message": "No network."}),
        PolicyRule.model_validate({"tool": "shell", "arguments": {"command": "^echo ok$"}, "action": "allow"}),
    )
    stepper = make([{"calls": [shell("curl x"), shell("echo ok"), shell("ls")]}, finish()], policies=operator)
    profile = [{"tool": "shell", "arguments": {"command": "curl"}, "action": "allow"}, {"risk": "medium", "action": "deny"}]
    job = stepper.run(stepper.submit(agent={"policies": profile}))
    assert job.status is JobStatus.SUCCEEDED
    first, second, third = stepper.steps(job)[0].calls
    assert first.preview.startswith("Denied by policy: No network.")
    assert (first.ok, second.ok, third.ok) == (False, True, False)
    assert len(sandbox.ran) == 1


def test_a_check_that_policy_denies_is_no_success(make: Make, sandbox: CountingSandbox) -> None:
    """It was accepted before the operator's rules changed."""
    stepper = make([finish()] * 5, policies=(PolicyRule.model_validate({"tool": "check", "action": "deny"}),))
    job = stepper.run(stepper.submit(checks=["true"]))
    assert (job.status, job.reason) == (JobStatus.FAILED, "no_progress")
    assert sandbox.ran == []


def test_checks_are_not_asked_for(make: Make) -> None:
    stepper = make([finish()])
    job = stepper.run(stepper.submit(checks=["true"], agent={"policies": [{"action": "ask"}]}))
    assert job.status is JobStatus.SUCCEEDED


def test_nobody_decides_in_time(make: Make, database: Database, sandbox: CountingSandbox) -> None:
    stepper = make([{"calls": [shell("echo a"), shell("echo b")]}, finish()])
    job = submit(stepper)
    (first, second) = asked(stepper, job)
    lapse(database)
    with pytest.raises(Conflict, match="expired"):
        decisions(stepper).approve(first.id)
    stepper.scheduler.tick()
    assert [call.ok for call in stepper.steps(job)[0].calls] == [False, False]
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert "nobody decided in time" in stepper.steps(job)[0].calls[0].preview
    assert sandbox.ran == []
    with pytest.raises(Conflict, match="expired"):
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
    with pytest.raises(Conflict, match=r"withdrawn: the job has ended: cancelled\.$"):
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


@pytest.mark.parametrize("change", [{"arguments": {"command": "echo other"}}, {"tool": "execute_python"}])
def test_an_approval_lets_nothing_else_through(make: Make, sandbox: CountingSandbox, database: Database, change: dict[str, Any]) -> None:
    """Whatever might change a call after its approval: it does not run."""
    stepper = make([shell("echo x"), finish()])
    job = submit(stepper)
    decisions(stepper).approve(asked(stepper, job)[0].id)
    with database.transaction() as tx:
        tx.connection.execute(update(calls_table).where(calls_table.c.guarded).values(change))
    ended = stepper.run(job)
    assert (ended.status, ended.reason) == (JobStatus.FAILED, "not_approved")
    assert sandbox.ran == []


DELEGATE = {"tool": "delegate", "arguments": {"instructions": "part one"}}
DELEGATING = {
    "tools": ["delegate", "shell", "finish"],
    "policies": [{"tool": "delegate", "action": "ask"}, {"tool": "shell", "action": "ask"}],
}


def children_of(stepper: Stepper, job: Job) -> list[str]:
    with stepper.runtime.database.transaction() as tx:
        return list(tx.connection.execute(select(jobs_table.c.id).where(jobs_table.c.parent_id == job.id)).scalars())


def test_a_child_is_started_once_it_is_approved_and_keeps_the_parents_policies(make: Make, sandbox: CountingSandbox) -> None:
    def script(request: DecisionRequest) -> Script:
        steps = [shell("echo child"), finish()] if "part one" in request.task else [DELEGATE, finish()]
        return Script.model_validate(steps)

    stepper = make(ScriptedModel(script))
    job = submit(stepper, DELEGATING)
    assert (job.status, job.reason, children_of(stepper, job)) == (JobStatus.WAITING, "approval", [])
    by = decisions(stepper)
    by.approve(asked(stepper, job)[0].id)
    settle_down(stepper)
    (child,) = children_of(stepper, job)
    with stepper.runtime.database.transaction() as tx:
        found = jobs.get(tx, child)
    assert (found.status, found.reason, sandbox.ran) == (JobStatus.WAITING, "approval", [])
    by.approve(asked(stepper, found)[0].id)
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert len(sandbox.ran) == 1


def test_a_child_that_nobody_approved_is_not_started(make: Make, database: Database) -> None:
    stepper = make([DELEGATE, finish()])
    job = submit(stepper, DELEGATING)
    with database.transaction() as tx:
        tx.connection.execute(update(calls_table).where(calls_table.c.guarded).values(held=None))
        flow.go_on(tx, stepper.runtime, jobs.get(tx, job.id, lock=True))
    assert children_of(stepper, job) == []
    assert "needs an approval" in stepper.steps(job)[0].calls[0].preview


def test_a_held_call_that_is_let_go_without_a_decision_does_not_run(make: Make, sandbox: CountingSandbox, database: Database) -> None:
    stepper = make([shell("echo x"), finish()])
    job = submit(stepper)
    with database.transaction() as tx:
        tx.connection.execute(update(calls_table).where(calls_table.c.guarded).values(held=None))
        flow.go_on(tx, stepper.runtime, jobs.get(tx, job.id, lock=True))
    settle_down(stepper)
    assert (stepper.job(job).reason, sandbox.ran) == ("not_approved", [])


def test_an_approved_call_runs_again_after_a_crash_under_the_same_approval(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([shell("echo x"), finish()])
    job = submit(stepper)
    decisions(stepper).approve(asked(stepper, job)[0].id)
    sandbox.failures = 1
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert len(sandbox.ran) == 2
    assert types(stepper, job).count("approval.requested") == 1


def test_the_same_call_again_needs_its_own_approval_also_after_compaction(make: Make, sandbox: CountingSandbox) -> None:
    """The first answer is too long for the context of the second step: it is compacted before the same call comes again."""
    long = shell("head -c 3000 /dev/zero | tr '\\0' x")
    stepper = make(
        [long, {"error": "context_too_long", "times": 1, **long}, long, {"error": "context_too_long", "times": 1, **long}, finish()]
    )
    job = submit(stepper)
    by = decisions(stepper)
    for times in range(1, 5):
        (request,) = asked(stepper, job)
        assert len(sandbox.ran) == times - 1
        by.approve(request.id)
        for _ in range(3):
            settle_down(stepper)
            stepper.time_passes()
            stepper.scheduler.tick()
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert len(sandbox.ran) == 4
    assert types(stepper, job).count("context.compacted") >= 1
    assert types(stepper, job).count("approval.requested") == 4


def test_an_approval_whose_ring_is_lost_is_carried_out_all_the_same(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([shell("echo x"), finish()])
    job = submit(stepper)
    stepper.doorbell.broken = True
    decisions(stepper).approve(asked(stepper, job)[0].id)
    stepper.doorbell.broken = False
    assert not stepper.doorbell.rings
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert len(sandbox.ran) == 1


def test_every_ring_twice_runs_an_approved_call_once(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([shell("echo x"), finish()])
    job = stepper.submit(agent=ASK_SHELL)
    stepper.doorbell.rings.extend(list(stepper.doorbell.rings))
    settle_down(stepper)
    decisions(stepper).approve(asked(stepper, job)[0].id)
    stepper.doorbell.rings.extend(list(stepper.doorbell.rings))
    settle_down(stepper)
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert len(sandbox.ran) == 1
    assert types(stepper, job).count("call.started") == 1


def test_the_database_keeps_the_hash(database: Database) -> None:
    numbers = [
        0,
        -0.0,
        1.0,
        1.5,
        1e2,
        1e16,
        1e22,
        1e23,
        1.7976931348623157e308,
        5e-324,
        1e-7,
        2**70,
        -3,
        True,
        None,
        "1",
        0.1,
        123456789.125,
    ]
    arguments = {f"k{n}": value for n, value in enumerate(numbers)} | {"ü": [{"b": 1, "a": "\u2028"}]}
    with database.transaction() as tx:
        kept = tx.connection.execute(text("SELECT CAST(:value AS jsonb)"), {"value": json.dumps(arguments)}).scalar_one()
    assert arguments_sha256(kept) == arguments_sha256(arguments)


def test_numbers_keep_their_hash_through_the_database(make: Make) -> None:
    odd = {"command": "echo x", "timeout_s": 1e2}
    stepper = make([{"tool": "shell", "arguments": odd}, finish()])
    job = submit(stepper)
    (request,) = asked(stepper, job)
    assert request.arguments_sha256 == arguments_sha256(odd) == arguments_sha256(request.arguments)
    decisions(stepper).approve(request.id)
    assert stepper.run(job).status is JobStatus.SUCCEEDED


def test_a_question_waits_for_its_answer(make: Make) -> None:
    model = ScriptedModel([QUESTION, finish()])
    stepper = make(model)
    job = submit(stepper, ASKING)
    assert (job.status, job.reason) == (JobStatus.WAITING, "input")
    (request,) = asked(stepper, job)
    assert (request.message, request.arguments["options"]) == ("Which colour?", ["red", "blue"])
    by = decisions(stepper)
    with pytest.raises(Conflict, match="answer"):
        by.approve(request.id)
    answered = by.answer(request.id, text="green")
    assert by.answer(request.id, text="green") == answered
    with pytest.raises(Conflict):
        by.answer(request.id, text="red")
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    past = model.requests[1].steps[0].calls[0]
    assert (past.ok, past.observation) == (True, "green")


def test_a_question_beside_other_calls_and_finish(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([{"calls": [QUESTION, shell("echo later"), finish()]}, finish()])
    job = submit(stepper, ASKING)
    calls = stepper.steps(job)[0].calls
    assert [call.status for call in calls] == [CallStatus.PENDING, CallStatus.PENDING, CallStatus.FAILED]
    decisions(stepper).deny(asked(stepper, job)[0].id, reason="find out yourself")
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert stepper.steps(job)[0].calls[0].preview == "Nobody will answer that: find out yourself"
    assert len(sandbox.ran) == 1


def test_a_question_that_nobody_answers(make: Make, database: Database) -> None:
    stepper = make([QUESTION, finish()])
    job = submit(stepper, ASKING)
    lapse(database)
    stepper.scheduler.tick()
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert "Nobody answered in time" in stepper.steps(job)[0].calls[0].preview


def test_ask_human_is_offered_by_name_only(make: Make) -> None:
    stepper = make([QUESTION, finish()])
    job = stepper.run(stepper.submit())
    assert job.status is JobStatus.SUCCEEDED
    assert "no tool 'ask_human'" in stepper.steps(job)[0].calls[0].preview


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
