"""Retries of jobs that did something outside: it is not done a second time, and the model is told of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dualtrack.db import approvals, claims, messages
from dualtrack.domain.approval import Resolution
from dualtrack.domain.conflicts import StepCutShort
from dualtrack.domain.doubt import TOLD
from dualtrack.domain.errors import InvalidRequest
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import CallStatus, JobStatus
from dualtrack.engine.approvals import Decisions
from dualtrack.testing.families import by_task, delegate, kids, parent_of, ring_until
from dualtrack.testing.payments import PAY, Pay, take_over
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.testing.stepper import Stepper
from dualtrack.tools.registry import TOOLS, Registry

from .conftest import Make, cancel, finish, fork, retry, shell, types, write

pytestmark = pytest.mark.usefixtures("healthy")

BOTH: Mapping[str, Any] = {"calls": [PAY, shell("true")]}
TOOLSET = ["pay", "shell", "finish"]


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel([BOTH, finish(), finish()])


@pytest.fixture
def stepper(make: Make, pay: Pay, model: ScriptedModel) -> Stepper:
    return make(model, registry=Registry((*TOOLS, pay)))


def copied(stepper: Stepper, job: Job) -> list[tuple[str, bool | None, str | None]]:
    """The calls of its last step: tool, whether it went well, and what else became of it."""
    return [(call.tool, call.ok, call.details.get("outcome")) for call in stepper.steps(job)[-1].calls]


def test_a_payment_in_doubt_is_kept_by_a_retry(stepper: Stepper, pay: Pay, model: ScriptedModel) -> None:
    job = stepper.submit(agent={"tools": TOOLSET, "on_unknown": "fail"})
    pay.then = take_over(stepper, job)
    job = stepper.run(job)
    assert [call.status for call in stepper.steps(job)[0].calls] == [CallStatus.FAILED, CallStatus.CANCELLED]
    again = retry(stepper, job)
    assert (again.step, copied(stepper, again)) == (1, [("pay", False, "unknown"), ("shell", False, "not_run")])
    assert stepper.run(again).status is JobStatus.SUCCEEDED
    assert len(pay.keys) == 1
    first, second = model.requests[-1].steps[0].calls
    assert (first.ok, first.observation, second.ok) == (False, TOLD, False)
    assert second.observation.startswith("Not run:")
    assert model.requests[-1].reflect


def paid_then_cancelled(stepper: Stepper, pay: Pay, **spec: Any) -> Job:
    job = stepper.submit(agent={"tools": TOOLSET}, **spec)
    while not pay.keys:
        assert stepper.ring()
    cancel(stepper, job)
    return stepper.run(job)


def test_a_payment_that_was_made_is_kept_by_a_retry(stepper: Stepper, pay: Pay) -> None:
    job = paid_then_cancelled(stepper, pay)
    again = retry(stepper, job)
    assert (again.step, copied(stepper, again)) == (1, [("pay", True, None), ("shell", False, "not_run")])
    assert {call.status for call in stepper.steps(again)[0].calls} == {CallStatus.SUCCEEDED, CallStatus.FAILED}
    by_hand = fork(stepper, job, 1)
    assert copied(stepper, by_hand) == copied(stepper, again)
    assert copied(stepper, fork(stepper, again, 1)) == copied(stepper, again)
    cancel(stepper, by_hand)
    assert retry(stepper, by_hand).step == 1
    assert stepper.run(again).status is JobStatus.SUCCEEDED
    assert len(pay.keys) == 1


def test_a_step_that_is_kept_counts(stepper: Stepper, pay: Pay) -> None:
    job = paid_then_cancelled(stepper, pay, limits={"steps": 1})
    with pytest.raises(InvalidRequest, match="1 steps are done"):
        retry(stepper, job)
    assert retry(stepper, job, limits={"steps": 2}).step == 1


def test_a_payment_that_a_person_could_not_tell_of_is_kept_by_a_retry(stepper: Stepper, pay: Pay) -> None:
    job = stepper.submit(agent={"tools": TOOLSET, "on_unknown": "ask"})
    pay.then = take_over(stepper, job)
    while stepper.job(job).status is not JobStatus.WAITING:
        assert stepper.ring()
    with stepper.runtime.database.transaction() as tx:
        (asked,) = approvals.pending(tx, job.id)
    Decisions(stepper.runtime, tenant_id=job.tenant_id, by="key").resolve(asked.id, Resolution.FAIL)
    again = retry(stepper, job)
    assert copied(stepper, again) == [("pay", False, "unknown"), ("shell", False, "not_run")]


def test_a_payment_cancelled_in_doubt_is_kept_as_unknown(stepper: Stepper, pay: Pay) -> None:
    job = stepper.submit(agent={"tools": TOOLSET, "on_unknown": "ask"})
    pay.then = take_over(stepper, job)
    while stepper.job(job).status is not JobStatus.WAITING:
        assert stepper.ring()
    cancel(stepper, job)
    assert [call.status for call in stepper.steps(job)[0].calls] == [CallStatus.CANCELLED] * 2
    again = retry(stepper, job)
    assert copied(stepper, again) == [("pay", False, "unknown"), ("shell", False, "not_run")]
    assert stepper.run(again).status is JobStatus.SUCCEEDED
    assert len(pay.keys) == 1


def test_payments_beside_what_failed_alike_are_kept(make: Make, pay: Pay) -> None:
    steps = [shell("true"), {"calls": [PAY, shell("false")]}, shell("false"), shell("false")]
    stepper = make(steps, registry=Registry((*TOOLS, pay)))
    job = stepper.run(stepper.submit(agent={"tools": TOOLSET}))
    assert (job.reason, retry(stepper, job).step) == ("no_progress", 2)


def test_what_never_left_is_done_again(stepper: Stepper, pay: Pay) -> None:
    job = stepper.submit(agent={"tools": TOOLSET})
    while stepper.job(job).step < 1:
        assert stepper.ring()
    cancel(stepper, job)
    assert retry(stepper, job).step == 0
    with pytest.raises(StepCutShort):
        fork(stepper, job, 1)
    assert pay.keys == []


def test_a_step_with_a_child_is_kept(make: Make) -> None:
    scripts = {"parent": [{"calls": [delegate("kid"), shell("true")]}, finish()], "kid": [shell("true"), shell("true"), finish()]}
    model = by_task(scripts)
    stepper = make(model)
    job = parent_of(stepper)
    ring_until(stepper, lambda: len(kids(stepper, job)) == 1)
    (kid,) = kids(stepper, job)
    cancel(stepper, job)
    again = retry(stepper, stepper.run(job))
    assert (again.step, copied(stepper, again)) == (1, [("delegate", False, "unknown"), ("shell", False, "not_run")])
    assert kid.id in stepper.steps(again)[0].calls[0].preview
    stepper.rest()
    assert stepper.job(again).status is JobStatus.SUCCEEDED
    assert kids(stepper, again) == []


def test_a_command_that_was_cut_off_says_so(make: Make, pay: Pay) -> None:
    stepper = make([{"calls": [PAY, shell("sleep 60")]}, finish()], registry=Registry((*TOOLS, pay)))
    job = stepper.submit(agent={"tools": TOOLSET})
    while not pay.keys:
        assert stepper.ring()
    call = stepper.steps(job)[0].calls[1]
    stepper.doorbell.rings.clear()
    with stepper.runtime.database.transaction() as tx:  # its executor dies at it
        assert claims.claim(tx, "calls", call.id, stepper.presence.key, stepper.runtime.limits) is not None
    stepper.leases_run_out()
    cancel(stepper, job)
    again = retry(stepper, job)
    assert copied(stepper, again) == [("pay", True, None), ("shell", False, "cut_off")]


def test_what_was_said_is_never_lost(make: Make) -> None:
    stepper = make([shell("true"), {"calls": [shell("true"), shell("true")]}, finish()])
    job = stepper.submit()
    write(stepper, job, "first")
    while stepper.job(job).step < 1 or any(call.finished_at is None for call in stepper.steps(job)[-1].calls):
        assert stepper.ring()
    write(stepper, job, "second")
    while stepper.job(job).step < 2:
        assert stepper.ring()
    write(stepper, job, "third")
    cancel(stepper, job)
    again = retry(stepper, stepper.run(job))
    with stepper.runtime.database.transaction() as tx:
        told = [(one.number, one.content, one.after_step) for one in messages.page(tx, again.id)]
    assert (again.step, told) == (1, [(1, "first", 0), (2, "second", 1), (3, "third", None)])
    assert stepper.run(again).status is JobStatus.SUCCEEDED
    assert types(stepper, again).count("message.taken") == 1


def test_what_was_taken_up_by_steps_that_are_not_kept_is_said_anew(make: Make) -> None:
    stepper = make([shell("true"), shell("false"), shell("false"), shell("false"), finish()])
    job = stepper.submit()
    while stepper.job(job).step < 2 or any(call.finished_at is None for call in stepper.steps(job)[-1].calls):
        assert stepper.ring()
    write(stepper, job, "use EUR")
    job = stepper.run(job)
    again = retry(stepper, job)
    with stepper.runtime.database.transaction() as tx:
        assert [(one.content, one.after_step) for one in messages.page(tx, again.id)] == [("use EUR", None)]
        forked = fork(stepper, job, 1)
        assert messages.page(tx, forked.id) == []
    assert again.step == 1
