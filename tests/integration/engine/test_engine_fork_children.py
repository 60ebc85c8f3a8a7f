"""What a fork or a retry after a step with several children begins with: the files of all of them, in whatever order they ended."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest

from dualtrack.domain.events import EventType
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.domain.waiting import Held
from dualtrack.engine import children
from dualtrack.testing.families import by_task, calls_of, delegate, in_workspace, kids, parent_of
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.testing.stepper import Stepper

from .conftest import Make, cancel, finish, fork, retry

pytestmark = pytest.mark.usefixtures("healthy")

SIZES = {"a": 1, "b": 2, "c": 3}
"""How much each child writes to its own file and to the one that they all give."""
ORDERS = list(permutations(SIZES))
LIST = {"tool": "list_files", "arguments": {}}


@pytest.fixture
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """No parent is told of its children's ends but by the test."""
    monkeypatch.setattr(children, "tell_parent", lambda *_: None)


def write(path: str, size: int) -> dict[str, Any]:
    """A call that writes a file of that size; it needs no sandbox."""
    return {"tool": "write_file", "arguments": {"path": path, "content": "x" * size}}


def family(*after: dict[str, Any]) -> ScriptedModel:
    """A job of which the second step has a child for each of `SIZES`, and then the calls given."""
    wide = {"calls": [*(delegate(name, outputs=[name, "same"]) for name in SIZES), *after]}
    given = {name: [{"calls": [write(name, size), write("same", size)]}, finish()] for name, size in SIZES.items()}
    return by_task({"parent": [write("base", 0), wide, wide, finish("no", success=False)], **given})


def told_in(stepper: Stepper, job: Job, order: Sequence[str], through: int) -> Job:
    """Run a job through that step, or to its end; of each step, the children's ends are told in that order."""
    while True:
        while stepper.ring():
            pass
        job = stepper.job(job)
        held = {str(call.arguments["instructions"]): call for call in calls_of(stepper, job, job.step - 1) if call.held is Held.CHILD}
        if not held or job.step > through:
            return job
        by_call = {kid.parent_call_id: kid for kid in kids(stepper, job)}
        assert {by_call[call.id].status for call in held.values()} == {JobStatus.SUCCEEDED}
        for name in order:
            assert children.settle(stepper.runtime, by_call[held[name].id].id)


def files(last: str) -> dict[str, int]:
    """What is there once all children of a step have ended, `last` as the last one."""
    return {"base": 0, "same": SIZES[last]} | SIZES


@pytest.mark.usefixtures("untold")
@pytest.mark.parametrize("order", ORDERS, ids="".join)
def test_children_that_end_in_any_order(make: Make, store: MemoryStore, order: tuple[str, ...]) -> None:
    stepper = make(family())
    source = told_in(stepper, parent_of(stepper), order, through=2)
    found = fork(stepper, source, 2)
    assert in_workspace(stepper, store, found) == files(order[-1])
    assert stepper.events(found)[1].type is EventType.JOB_FORKED
    assert stepper.events(found)[1].data["workspace"] == found.workspace
    assert fork(stepper, found, 2).workspace == found.workspace
    assert in_workspace(stepper, store, fork(stepper, found, 1)) == {"base": 0}
    assert fork(stepper, found, 0).workspace is None


@pytest.mark.usefixtures("untold")
@pytest.mark.parametrize("order", [("a", "b", "c"), ("b", "c", "a")], ids="".join)
def test_a_line_of_forks_with_children_of_their_own(make: Make, store: MemoryStore, order: tuple[str, ...]) -> None:
    stepper = make(family())
    source = told_in(stepper, parent_of(stepper), order, through=3)
    assert source.reason == "agent_gave_up"
    middle = told_in(stepper, fork(stepper, source, 2), order[::-1], through=3)
    assert middle.reason == "agent_gave_up"
    assert in_workspace(stepper, store, middle) == files(order[0])
    for job, last in ((source, order[-1]), (middle, order[0])):
        again = retry(stepper, job)
        assert (again.step, again.workspace) == (3, job.workspace)
        for taken in (job, again, fork(stepper, again, 3, message="Go on.")):
            assert in_workspace(stepper, store, fork(stepper, taken, 3)) == files(last)
            assert in_workspace(stepper, store, fork(stepper, taken, 2)) == files(order[-1])
            assert in_workspace(stepper, store, fork(stepper, taken, 1)) == {"base": 0}


@pytest.mark.usefixtures("untold")
@pytest.mark.parametrize("order", [("c", "b", "a")], ids="".join)
def test_calls_after_the_children(make: Make, store: MemoryStore, order: tuple[str, ...]) -> None:
    for after, more in ((LIST, {}), (write("later", 0), {"later": 0})):
        stepper = make(family(after))
        source = told_in(stepper, parent_of(stepper), order, through=2)
        assert source.step == 3
        assert in_workspace(stepper, store, fork(stepper, source, 2)) == files(order[-1]) | more


@pytest.mark.usefixtures("untold")
def test_of_a_job_that_ended_before_all_children_did(make: Make, store: MemoryStore) -> None:
    stepper = make(family())
    job = parent_of(stepper)
    while stepper.ring():
        pass
    by_call = {kid.parent_call_id: kid for kid in kids(stepper, job)}
    third, _, first = (by_call[call.id] for call in calls_of(stepper, job, 1))
    for kid in (first, third):
        assert children.settle(stepper.runtime, kid.id)
    assert cancel(stepper, job)
    stepper.rest()
    again = retry(stepper, job)
    assert again.step == 2
    assert in_workspace(stepper, store, again) == {"base": 0, "a": 1, "c": 3, "same": 1}
