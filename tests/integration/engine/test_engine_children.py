"""Children: side by side, awaited, and their ends told once, with their answers and files."""

from __future__ import annotations

from typing import Any

import pytest

from dualtrack.db import children as db_children
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import CallStatus, JobStatus, Phase
from dualtrack.domain.usage import Usage
from dualtrack.domain.waiting import Held
from dualtrack.engine import children, steering
from dualtrack.objects import manifests
from dualtrack.objects.workspace import WorkspaceStore
from dualtrack.testing.families import TOOLS, TWO, by_task, calls_of, delegate, in_workspace, kids, parent_of, ring_until, under_lock
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.stepper import Stepper

from .conftest import Make, finish, shell, types


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
