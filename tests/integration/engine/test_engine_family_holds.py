"""A parent's stop and hold are obeyed by its children, and what a child holds by itself stays held."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import select

from dualtrack.db.tables import jobs as jobs_table
from dualtrack.domain.conflicts import ParentHeld
from dualtrack.domain.lifecycle import CallStatus, JobStatus
from dualtrack.domain.limits import LimitsChange
from dualtrack.domain.waiting import Hold
from dualtrack.engine import extension, flow, steering
from dualtrack.models.port import DecisionRequest
from dualtrack.testing.families import by_task, calls_of, delegate, kids, parent_of, ring_until, under_lock

from .conftest import CountingSandbox, Make, cancel, finish, shell, types


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
    with pytest.raises(ParentHeld, match=job.id):
        under_lock(stepper, child, steering.resume, by="test")
    under_lock(stepper, child, steering.pause, by="test")
    under_lock(stepper, job, steering.resume, by="test")
    stepper.rest()
    assert (stepper.job(child).hold, stepper.job(child).reason) == (Hold.PAUSED, "paused")
    under_lock(stepper, child, steering.resume, by="test")
    assert stepper.run(job).status is JobStatus.SUCCEEDED


@pytest.mark.parametrize("working", [False, True])
def test_a_paused_child_that_is_resumed_under_a_paused_parent_starts_nothing(make: Make, working: bool) -> None:
    def resumed(_: DecisionRequest) -> None:
        if hold_both.pop("now", False):
            pause_both()
            under_lock(stepper, kids(stepper, job)[0], steering.resume, by="test")

    def pause_both() -> None:
        under_lock(stepper, kids(stepper, job)[0], steering.pause, by="test")
        under_lock(stepper, job, steering.pause, by="test")

    hold_both: dict[str, bool] = {}
    stepper = make(by_task({"parent": [delegate("child"), finish("end")], "child": [shell("echo 1"), finish()]}, on_decide=resumed))
    job = parent_of(stepper)
    ring_until(stepper, lambda: len(kids(stepper, job)) == 1)
    if working:  # while the child's planner asks the model
        hold_both["now"] = True
        stepper.ring()
    else:
        pause_both()
        under_lock(stepper, kids(stepper, job)[0], steering.resume, by="test")
    while stepper.ring():  # no tick of the scheduler has passed
        pass
    (child,) = kids(stepper, job)
    assert (child.status, child.reason, child.hold, child.step) == (JobStatus.WAITING, "paused", Hold.PARENT, int(working))
    assert child.message is not None
    assert "Its parent job is paused" in child.message
    assert types(stepper, child).count("job.pausing") == 2
    under_lock(stepper, job, steering.resume, by="test")
    assert stepper.run(job).answer == "end"


def test_a_child_whose_budget_is_extended_under_a_paused_parent_starts_nothing(make: Make) -> None:
    stepper = make(by_task({"parent": [delegate("child"), finish("end")], "child": [shell("echo 1"), finish()]}))
    job = parent_of(stepper, limits={"steps": 2})
    ring_until(stepper, lambda: len(kids(stepper, job)) == 1)
    (child,) = kids(stepper, job)
    stepper.rest()
    assert (stepper.job(child).hold, stepper.job(child).step) == (Hold.BUDGET, 1)
    under_lock(stepper, job, steering.pause, by="test")
    under_lock(stepper, job, extension.extend, LimitsChange(steps=9), by="test")
    assert under_lock(stepper, child, extension.look_again, by="test")
    while stepper.ring():
        pass
    child = stepper.job(child)
    assert (child.reason, child.hold, child.step) == ("paused", Hold.PARENT, 1)
    under_lock(stepper, job, steering.resume, by="test")
    assert stepper.run(job).answer == "end"


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
