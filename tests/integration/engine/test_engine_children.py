"""Children: side by side, their ends told once, their parents' stops and holds obeyed, their use counted for the whole family."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from sqlalchemy import func, select, update

from dualtrack.db import children as db_children
from dualtrack.db import jobs
from dualtrack.db.engine import Database
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.domain.errors import Conflict
from dualtrack.domain.forking import Changes
from dualtrack.domain.job import DEFAULT_AGENT_TOOLS, Job
from dualtrack.domain.lifecycle import CallStatus, JobStatus, Phase
from dualtrack.domain.limits import LARGEST, LimitsChange
from dualtrack.domain.step import Call
from dualtrack.domain.usage import Usage
from dualtrack.domain.waiting import Held, Hold
from dualtrack.engine import children, extension, flow, forks, steering
from dualtrack.models.port import DecisionRequest
from dualtrack.objects import manifests
from dualtrack.objects.workspace import WorkspaceStore
from dualtrack.testing.model_script import Script
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.testing.stepper import Stepper

from .conftest import CountingSandbox, Make, cancel, finish, shell, types

TOOLS = [*DEFAULT_AGENT_TOOLS, "delegate"]
MODEL = Mapping[str, list[dict[str, Any]]]


def delegate(instructions: str, **more: Any) -> dict[str, Any]:
    return {"tool": "delegate", "arguments": {"instructions": instructions, **more}}


def by_task(scripts: MODEL, on_decide: Callable[[DecisionRequest], None] | None = None) -> ScriptedModel:
    """A model whose script is that of the first word of the task."""
    return ScriptedModel(lambda request: Script.model_validate(scripts[request.task.split()[0]]), on_decide=on_decide)


def parent_of(stepper: Stepper, **spec: Any) -> Job:
    return stepper.submit("parent", agent={"tools": TOOLS}, **spec)


def kids(stepper: Stepper, job: Job) -> list[Job]:
    with stepper.runtime.database.transaction() as tx:
        return sorted(jobs.page(tx, job.tenant_id, limit=100, parent_id=job.id), key=lambda kid: kid.id)


def calls_of(stepper: Stepper, job: Job, step: int = 0) -> tuple[Call, ...]:
    return stepper.steps(job)[step].calls


def in_workspace(stepper: Stepper, store: MemoryStore, job: Job) -> dict[str, int]:
    found = WorkspaceStore(store, job.tenant_id, stepper.runtime.limits).manifest(stepper.job(job).workspace)
    return {entry.path: entry.size for entry in found.entries}


def ring_until(stepper: Stepper, done: Callable[[], bool]) -> None:
    for _ in range(100):
        if done():
            return
        assert stepper.ring()
    raise AssertionError("it never came to that")


def under_lock(stepper: Stepper, job: Job, act: Callable[..., Any], *more: Any, **named: Any) -> Any:
    with stepper.runtime.database.transaction() as tx:
        return act(tx, stepper.runtime, jobs.get(tx, job.id, lock=True), *more, **named)


TWO = {"calls": [delegate("left", outputs=["left.txt"]), delegate("right", outputs=["right.txt"])]}


def test_children_work_side_by_side_and_give_back_answers_and_files(make: Make, store: MemoryStore) -> None:
    scripts = {
        "parent": [shell("echo shared > base.txt"), TWO, shell("cat base.txt left.txt right.txt"), finish("both")],
        "left": [shell("cat base.txt > left.txt; echo l >> left.txt; echo no > junk.txt"), finish("left is done")],
        "right": [shell("echo r > right.txt"), finish("right is done")],
    }
    stepper = make(by_task(scripts))
    job = parent_of(stepper, metadata={"team": "x"}, priority=3)
    ring_until(stepper, lambda: len(kids(stepper, job)) == 2)
    left, right = kids(stepper, job)
    assert (left.root_id, left.depth, left.spec.metadata, left.spec.priority) == (job.id, 1, {"team": "x"}, 3)
    assert left.workspace == stepper.job(job).workspace
    assert {call.held for call in calls_of(stepper, job, 1)} == {Held.CHILD}
    assert stepper.job(job).status is JobStatus.RUNNING
    assert sum(task == "plan" for task, _ in stepper.doorbell.rings) == 2  # both are rung for at once
    job = stepper.run(job)
    assert (job.status, job.answer) == (JobStatus.SUCCEEDED, "both")
    told = calls_of(stepper, job, 1)
    assert [call.ok for call in told] == [True, True]
    assert "left is done" in told[0].preview
    assert "left.txt" in told[0].preview
    assert [call.details["child_job_id"] for call in told] == [left.id, right.id]
    assert calls_of(stepper, job, 2)[0].preview.split()[-4:] == ["shared", "shared", "l", "r"]
    assert "junk.txt" not in in_workspace(stepper, store, job)
    assert types(stepper, job).count("child.started") == 2
    assert types(stepper, job).count("call.finished") == 5


def awaited(stepper: Stepper, *asked: Job) -> dict[str, list[str]]:
    with stepper.runtime.database.transaction() as tx:
        found = db_children.awaited(tx, [job.id for job in asked])
    return {job_id: [child.job_id for child in waited] for job_id, waited in found.items()}


def test_whom_a_job_waits_for_is_shown_while_nothing_of_its_own_is_at_work(make: Make) -> None:
    scripts = {
        "parent": [{"calls": [shell("true"), delegate("left")]}, TWO, finish("both")],
        "left": [shell("echo l > left.txt"), finish("l")],
        "right": [delegate("deep"), shell("echo r > right.txt"), finish("r")],
        "deep": [{"tool": "ask_human", "arguments": {"question": "Which?"}}, finish("d")],
    }
    stepper = make(by_task(scripts))
    job = stepper.submit("parent", agent={"tools": [*TOOLS, "ask_human"]})
    assert awaited(stepper, job) == {}
    ring_until(stepper, lambda: len(kids(stepper, job)) == 1)
    while stepper.job(job).step < 2:
        one = kids(stepper, job)[0]
        at_work = any(call.held is None and call.finished_at is None for call in calls_of(stepper, job))
        waits = one.finished_at is None or any(call.held is Held.CHILD for call in calls_of(stepper, job))
        assert awaited(stepper, job) == ({job.id: [one.id]} if waits and not at_work else {})
        assert stepper.ring()
    stepper.rest()
    left, right = kids(stepper, job)[1:]
    (deep,) = kids(stepper, right)
    assert stepper.job(deep).status is JobStatus.WAITING
    assert awaited(stepper, job, left, right, deep) == {job.id: [right.id], right.id: [deep.id]}
    with stepper.runtime.database.transaction() as tx:
        (child,) = db_children.awaited(tx, [right.id])[right.id]
        family, half = (db_children.below(tx, stepper.job(each)) for each in (job, right))
        cut = db_children.below(tx, stepper.job(job), most=2)
    assert (child.status, child.reason, child.call_id) == (JobStatus.WAITING, "input", calls_of(stepper, right)[0].id)
    assert "asked a question" in str(child.message)
    assert (family.jobs, family.live, family.waiting, family.complete) == (4, 2, 1, True)
    members = [stepper.job(each) for each in (job, *kids(stepper, job), deep)]
    assert family.spent.steps == sum(member.step for member in members) == 2 + 2 + 2 + 1 + 1
    assert family.spent.usage == sum((member.usage for member in members), Usage())
    assert (half.jobs, half.spent.steps) == (1, 2)
    assert (cut.jobs, cut.complete) == (2, False)
    under_lock(stepper, job, steering.pause, by="test")
    assert stepper.job(job).status is JobStatus.WAITING  # it says so itself now
    assert awaited(stepper, job) == {}


def test_a_childs_failure_is_an_observation(make: Make) -> None:
    scripts = {
        "parent": [delegate("child", outputs=["never.txt"], limits={"steps": 2}), finish("went on")],
        "child": [shell("echo 1"), shell("echo 2"), shell("echo 3")],
    }
    stepper = make(by_task(scripts))
    job = stepper.run(parent_of(stepper))
    (call,) = calls_of(stepper, job)
    assert (job.status, call.ok, call.status) == (JobStatus.SUCCEEDED, False, CallStatus.FAILED)
    assert "failed (limit_steps)" in call.preview
    (child,) = kids(stepper, job)
    assert (child.status, child.step, child.spec.limits.steps) == (JobStatus.FAILED, 2, 2)


def test_files_that_are_in_the_way_are_told_and_nothing_is_merged(make: Make) -> None:
    scripts = {
        "parent": [shell("mkdir out; echo x > out/x"), delegate("child", outputs=["out"]), finish()],
        "child": [shell("rm -r out; echo file > out"), finish("made it")],
    }
    stepper = make(by_task(scripts))
    job = stepper.run(parent_of(stepper))
    (call,) = calls_of(stepper, job, 1)
    assert call.ok is False
    assert "could not be taken over" in call.preview
    assert "out/x" in call.preview


def test_a_long_answer_is_kept_whole_out_of_line(make: Make) -> None:
    scripts = {"parent": [delegate("child"), finish()], "child": [finish("long " * 2000)]}
    stepper = make(by_task(scripts))
    job = stepper.run(parent_of(stepper))
    (call,) = calls_of(stepper, job)
    assert call.observation_key is not None
    assert len(call.preview) < 5000
    assert len(stepper.runtime.store.get(call.observation_key)) > 9000


def test_cancel_of_the_parent_reaches_its_children_and_their_commands(make: Make, sandbox: CountingSandbox) -> None:
    scripts = {
        "parent": [{"calls": [delegate("child"), delegate("idle")]}, finish()],
        "child": [shell("sleep 60"), finish()],
        "idle": [finish()],
    }
    stepper = make(by_task(scripts))
    job = parent_of(stepper)
    ring_until(stepper, lambda: any(task == "execute" for task, _ in stepper.doorbell.rings))
    stepper.doorbell.rings = type(stepper.doorbell.rings)(ring for ring in stepper.doorbell.rings if ring[0] == "execute")

    def stop() -> None:
        cancel(stepper, job)
        stepper.scheduler.tick()

    sandbox.before = stop
    stepper.ring()  # the child's command is ended by the next heartbeat
    assert stepper.job(job).status is JobStatus.CANCELLED
    stepper.scheduler.tick()
    child, idle = kids(stepper, job)
    assert (child.status, idle.status) == (JobStatus.CANCELLED, JobStatus.CANCELLED)
    assert "cancelled" in calls_of(stepper, child)[0].preview
    assert {call.status for call in calls_of(stepper, job)} == {CallStatus.CANCELLED}
    stepper.rest()
    assert types(stepper, job)[-1] == "job.cancelled"


def test_a_crash_between_the_childs_end_and_the_parents_call_is_made_good(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    stepper = make(by_task({"parent": [delegate("child"), finish("end")], "child": [finish("told")]}))
    job = parent_of(stepper)
    with monkeypatch.context() as crash:
        crash.setattr(children, "tell_parent", lambda *_: None)  # the process died right after the child's last commit
        while stepper.ring():
            pass
    (child,) = kids(stepper, job)
    assert child.status is JobStatus.SUCCEEDED
    assert calls_of(stepper, job)[0].held is Held.CHILD
    stepper.scheduler.tick()
    assert calls_of(stepper, job)[0].preview == "told"
    assert stepper.run(job).answer == "end"


def test_a_childs_end_is_told_once_however_often_it_is_told(make: Make) -> None:
    stepper = make(
        by_task(
            {"parent": [{"calls": [delegate("child"), delegate("other")]}, finish("end")], "child": [finish("a")], "other": [finish("b")]}
        )
    )
    job = parent_of(stepper)
    while stepper.ring() and len(kids(stepper, job)) < 2:
        pass
    first, second = kids(stepper, job)
    stepper.planner.advance(first.id)
    assert not children.settle(stepper.runtime, first.id)
    assert not children.settle(stepper.runtime, second.id)  # it has not ended
    stepper.scheduler.tick()
    assert types(stepper, job).count("call.finished") == 1
    stepper.planner.advance(second.id)
    job = stepper.run(job)
    assert (job.status, types(stepper, job).count("call.finished")) == (JobStatus.SUCCEEDED, 3)


def test_two_ends_at_once_both_count_and_both_merge(make: Make, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = {
        "parent": [TWO, finish("end")],
        "left": [shell("echo l > left.txt"), finish("l")],
        "right": [shell("echo r > right.txt"), finish("r")],
    }
    stepper = make(by_task(scripts))
    job = parent_of(stepper)
    with monkeypatch.context() as crash:
        crash.setattr(children, "tell_parent", lambda *_: None)
        while stepper.ring():
            pass
    left, right = kids(stepper, job)
    real, seen = WorkspaceStore.merged, []

    def merged(self: WorkspaceStore, digest: str | None, source: str | None, paths: Any) -> str:
        found = real(self, digest, source, paths)
        seen.append(tuple(paths))
        if len(seen) == 1:  # between the first one's merge and its record, the other one is recorded
            assert children.settle(stepper.runtime, right.id)
        return found

    monkeypatch.setattr(WorkspaceStore, "merged", merged)
    assert children.settle(stepper.runtime, left.id)
    assert seen == [("left.txt",), ("right.txt",), ("left.txt",)]
    assert {"left.txt", "right.txt"} <= set(in_workspace(stepper, store, job))
    assert sum(ring == ("plan", job.id) for ring in stepper.doorbell.rings) == 1
    assert stepper.run(job).status is JobStatus.SUCCEEDED


def test_a_pause_of_the_parent_pauses_its_children_and_a_resumption_resumes_them(make: Make) -> None:
    stepper = make(by_task({"parent": [delegate("child"), finish("end")], "child": [shell("echo 1"), finish()]}))
    job = parent_of(stepper)
    ring_until(stepper, lambda: len(kids(stepper, job)) == 1)
    under_lock(stepper, job, flow.hold, Hold.PAUSED, by="test")
    stepper.scheduler.tick()
    stepper.rest()
    (child,) = kids(stepper, job)
    assert (child.status, child.reason, child.hold) == (JobStatus.WAITING, "paused", Hold.PARENT)
    assert stepper.job(job).reason == "paused"
    under_lock(stepper, job, flow.release, by="test")
    stepper.scheduler.tick()
    assert kids(stepper, job)[0].hold is None
    assert stepper.run(job).answer == "end"


def test_a_child_that_was_paused_itself_stays_so_when_its_parent_resumes(make: Make) -> None:
    stepper = make(by_task({"parent": [delegate("child"), finish()], "child": [finish()]}))
    job = parent_of(stepper)
    ring_until(stepper, lambda: len(kids(stepper, job)) == 1)
    (child,) = kids(stepper, job)
    under_lock(stepper, child, flow.hold, Hold.PAUSED, by="test")
    under_lock(stepper, job, flow.hold, Hold.PAUSED, by="test")
    stepper.scheduler.tick()
    under_lock(stepper, job, flow.release, by="test")
    stepper.rest()
    assert stepper.job(child).hold is Hold.PAUSED


def test_a_held_child_can_be_paused_for_itself_and_not_resumed_past_its_parent(make: Make) -> None:
    stepper = make(by_task({"parent": [delegate("child"), finish()], "child": [finish()]}))
    job = parent_of(stepper)
    ring_until(stepper, lambda: len(kids(stepper, job)) == 1)
    under_lock(stepper, job, flow.hold, Hold.PAUSED, by="test")
    stepper.scheduler.tick()
    (child,) = kids(stepper, job)
    with pytest.raises(Conflict, match=job.id):
        under_lock(stepper, child, steering.resume, by="test")
    under_lock(stepper, child, steering.pause, by="test")
    under_lock(stepper, job, steering.resume, by="test")
    stepper.rest()
    assert (stepper.job(child).hold, stepper.job(child).reason) == (Hold.PAUSED, "paused")
    under_lock(stepper, child, steering.resume, by="test")
    assert stepper.run(job).status is JobStatus.SUCCEEDED


def test_what_is_forked_from_a_child_is_nobodys_child_and_bounded_as_its_family_was(make: Make) -> None:
    stepper = make(by_task({"parent": [delegate("child"), finish()], "child": [shell("echo 1"), finish("alone")]}))
    job = stepper.run(parent_of(stepper, limits={"steps": 7}))
    (child,) = kids(stepper, job)
    assert child.limits.steps == LARGEST["steps"]
    made, _ = forks.fork(stepper.runtime, tenant_id=job.tenant_id, job_id=child.id, step=1, changes=Changes(), known_models=["deep"])
    assert (made.parent_id, made.root_id, made.depth) == (None, None, 0)
    assert made.limits == job.limits
    assert stepper.run(made).answer == "alone"


def test_the_familys_steps_are_counted_together_and_extending_the_root_lets_all_go_on(make: Make) -> None:
    busy = [shell(f"echo {n}") for n in range(4)]
    scripts = {
        "parent": [{"calls": [delegate("left"), delegate("right")]}, finish("end")],
        "left": [*busy, finish()],
        "right": [*busy, finish()],
    }
    stepper = make(by_task(scripts))
    job = parent_of(stepper, limits={"steps": 6})
    stepper.rest()
    family = [stepper.job(job), *kids(stepper, job)]
    assert sum(member.step for member in family) == 6
    assert [member.status for member in family] == [JobStatus.RUNNING, JobStatus.WAITING, JobStatus.WAITING]
    for child in family[1:]:
        assert child.message is not None
        assert f"6 of job {job.id}'s 6 steps are used" in child.message
        assert f"jobs extend {job.id}" in child.message
    under_lock(stepper, job, extension.extend, LimitsChange(steps=50), by="test")
    job = stepper.run(job)
    assert (job.status, job.answer) == (JobStatus.SUCCEEDED, "end")
    assert [kid.step for kid in kids(stepper, job)] == [5, 5]


def test_a_family_whose_root_wants_to_fail_fails(make: Make) -> None:
    scripts = {"parent": [delegate("child"), finish()], "child": [shell(f"echo {n}") for n in range(9)]}
    stepper = make(by_task(scripts))
    job = stepper.run(parent_of(stepper, limits={"steps": 3, "on_limit": "fail"}))
    assert (job.status, job.reason) == (JobStatus.FAILED, "limit_steps")
    (child,) = kids(stepper, job)
    assert (child.status, child.step) == (JobStatus.FAILED, 2)


def test_the_end_of_the_roots_time_holds_the_family(make: Make, database: Database) -> None:
    stepper = make(by_task({"parent": [delegate("child"), finish("end")], "child": [shell("echo 1"), finish()]}))
    job = parent_of(stepper)
    ring_until(stepper, lambda: len(kids(stepper, job)) == 1)
    with database.transaction() as tx:
        tx.connection.execute(update(jobs_table).where(jobs_table.c.id == job.id).values(deadline_at=func.now()))
    stepper.scheduler.tick()
    stepper.rest()
    (child,) = kids(stepper, job)
    assert (stepper.job(job).reason, child.hold) == ("budget", Hold.PARENT)
    under_lock(stepper, job, extension.extend, LimitsChange(wall_time_s=10_000), by="test")
    assert stepper.run(job).answer == "end"


def test_children_are_nested_so_deep_and_no_deeper(make: Make) -> None:
    scripts = {
        "parent": [delegate("child"), finish()],
        "child": [delegate("grandchild"), finish("from below")],
        "grandchild": [delegate("too deep"), finish("no further")],
    }
    stepper = make(by_task(scripts))
    job = stepper.run(parent_of(stepper))
    (child,) = kids(stepper, job)
    (grandchild,) = kids(stepper, child)
    assert (grandchild.depth, grandchild.root_id, grandchild.parent_id) == (2, job.id, child.id)
    assert "delegate" not in grandchild.spec.agent.tools
    assert calls_of(stepper, grandchild)[0].ok is False
    assert kids(stepper, grandchild) == []
    assert calls_of(stepper, job)[0].preview == "from below"


def test_more_children_than_a_job_may_have_are_refused(make: Make) -> None:
    scripts = {"parent": [{"calls": [delegate("child")] * 3}, delegate("child"), finish("end")], "child": [finish("ok")]}
    stepper = make(by_task(scripts), children=2)
    job = stepper.run(parent_of(stepper))
    assert job.status is JobStatus.SUCCEEDED
    assert [call.ok for call in calls_of(stepper, job)] == [True, True, False]
    assert "at most 2 children" in calls_of(stepper, job, 1)[0].preview or "may have 2 children" in calls_of(stepper, job, 1)[0].preview
    assert len(kids(stepper, job)) == 2


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"tools": ["http_request"]}, "none of your tools"),
        ({"outputs": ["../out"]}, "outputs"),
        ({"inputs": ["/etc/passwd"]}, "inputs"),
        ({"limits": {"steps": 0}}, "limits.steps"),
        ({"limits": {"steps": 10**9}}, "limits.steps"),
        ({"instructions": "  "}, "instructions"),
    ],
)
def test_a_wrong_delegation_is_told_to_the_agent(make: Make, arguments: dict[str, Any], wrong: str) -> None:
    stepper = make(by_task({"parent": [delegate(**{"instructions": "child", **arguments}), finish()]}))
    job = stepper.run(parent_of(stepper))
    (call,) = calls_of(stepper, job)
    assert call.ok is False
    assert wrong in call.preview
    assert kids(stepper, job) == []


def test_who_is_not_given_the_tool_can_not_delegate(make: Make) -> None:
    stepper = make(by_task({"parent": [delegate("child"), finish()]}))
    job = stepper.run(stepper.submit("parent"))
    assert "There is no tool 'delegate'" in calls_of(stepper, job)[0].preview


def test_a_delegation_waits_for_its_turn_and_sees_what_came_before(make: Make) -> None:
    scripts = {
        "parent": [{"calls": [shell("echo early > early.txt"), delegate("child", inputs=["early.txt"])]}, finish()],
        "child": [shell("cat early.txt"), finish("seen")],
    }
    model = by_task(scripts)
    stepper = make(model)
    job = parent_of(stepper)
    stepper.ring()
    assert kids(stepper, job) == []
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    (child,) = kids(stepper, job)
    assert calls_of(stepper, child)[0].preview.split()[-1] == "early"
    assert any("Files to look at: early.txt" in request.task for request in model.requests)


def test_no_decision_of_a_paused_jobs_delegation_starts_a_child(make: Make) -> None:
    def pause(request: DecisionRequest) -> None:
        if request.task.startswith("parent"):
            under_lock(stepper, job, flow.hold, Hold.PAUSED, by="test")

    stepper = make(by_task({"parent": [delegate("child"), finish()], "child": [finish()]}, on_decide=pause))
    job = parent_of(stepper)
    stepper.rest()
    assert (stepper.job(job).reason, kids(stepper, job)) == ("paused", [])
    under_lock(stepper, job, flow.release, by="test")
    ring_until(stepper, lambda: len(kids(stepper, job)) == 1)
    with stepper.runtime.database.transaction() as tx:
        first = tx.connection.execute(select(jobs_table.c.spec).where(jobs_table.c.parent_id == job.id)).scalar_one()
    assert json.dumps(first["limits"]["on_limit"]) == '"fail"'


def test_a_child_whose_files_are_damaged_fails_and_keeps_nobody_waiting(
    make: Make, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = {
        "parent": [{"calls": [delegate("kid", outputs=["left.txt"])]}, finish("without it")],
        "kid": [shell("echo left > left.txt"), finish("kid is done")],
    }
    stepper = make(by_task(scripts))
    job = parent_of(stepper)
    ring_until(stepper, lambda: bool(kids(stepper, job)))
    kid = kids(stepper, job)[0]
    ring_until(stepper, lambda: stepper.job(kid).phase is Phase.EXECUTE and stepper.job(kid).workspace is not None)
    damaged = stepper.job(kid).workspace
    settle = children.settle

    def after_damage(*arguments: Any) -> bool:
        monkeypatch.setattr(manifests, "_cache", manifests._Cache())
        store.put(next(key for key in store._objects if key.endswith(str(damaged))), b"damaged")
        return settle(*arguments)

    monkeypatch.setattr(children, "settle", after_damage)
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    call = calls_of(stepper, job)[0]
    assert call.ok is False
    assert "could not be taken over" in call.preview
