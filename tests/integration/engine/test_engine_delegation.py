"""Delegation: who may, to how many, how deep, with which arguments, and when it is its turn."""

from __future__ import annotations

from typing import Any

import pytest

from dualtrack.domain.lifecycle import JobStatus
from dualtrack.testing.families import by_task, calls_of, delegate, kids, parent_of

from .conftest import Make, finish, shell


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
