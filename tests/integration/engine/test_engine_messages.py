"""Messages to running jobs: taken up at the next decision, shown at one place for good, never passed over by a finish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dualtrack.db import jobs, messages
from dualtrack.domain.conflicts import JobEnded, LimitReached
from dualtrack.domain.errors import TooLarge
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.domain.message import Message
from dualtrack.engine import steering
from dualtrack.models.port import DecisionRequest
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.testing.stepper import Stepper

from .conftest import CountingSandbox, Make, cancel, finish, shell, types


def write(stepper: Stepper, job: Job, content: str) -> Message:
    with stepper.runtime.database.transaction() as tx:
        return steering.write(tx, stepper.runtime, jobs.get(tx, job.id, lock=True), content, by="key")


def placed(stepper: Stepper, job: Job) -> list[tuple[str, int | None]]:
    with stepper.runtime.database.transaction() as tx:
        return [(message.content, message.after_step) for message in messages.page(tx, job.id)]


def said(request: DecisionRequest) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    return request.messages, [step.messages for step in request.steps]


def at(calls: dict[int, Callable[[], Any]]) -> Callable[[DecisionRequest], None]:
    """While the model decides for the nth time (from 1), do that."""
    count = 0

    def act(_: object) -> None:
        nonlocal count
        count += 1
        if count in calls:
            calls[count]()

    return act


def test_messages_are_shown_where_they_were_taken_up(make: Make) -> None:
    model = ScriptedModel(
        [shell("echo 1"), shell("echo 2"), finish()],
        on_decide=at({2: lambda: [write(stepper, job, "during the second"), write(stepper, job, "and again")]}),
    )
    stepper = make(model)
    job = stepper.submit()
    write(stepper, job, "before the first")
    stepper.ring()
    write(stepper, job, "during a call")
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert placed(stepper, job) == [("before the first", 0), ("during a call", 1), ("during the second", 2), ("and again", 2)]
    assert [said(request) for request in model.requests] == [
        (("before the first",), []),
        (("before the first",), [("during a call",)]),
        (("before the first",), [("during a call",), ("during the second", "and again")]),
    ]
    taken = [event.data for event in stepper.events(job) if event.type == "message.taken"]
    assert taken == [{"numbers": [1], "after_step": 0}, {"numbers": [2], "after_step": 1}, {"numbers": [3, 4], "after_step": 2}]
    added = [event.data for event in stepper.events(job) if event.type == "message.added"]
    assert added[0] == {"number": 1, "content": "before the first", "by": "key"}


def test_a_decision_tried_again_sees_the_same_and_what_came_since(make: Make) -> None:
    def die() -> None:
        write(stepper, job, "second")
        raise KeyboardInterrupt

    model = ScriptedModel([shell("true"), finish()], on_decide=at({2: die}))
    stepper = make(model)
    job = stepper.submit()
    stepper.ring()
    write(stepper, job, "first")
    stepper.ring()
    with pytest.raises(KeyboardInterrupt):
        stepper.ring()
    stepper.leases_run_out()
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert [said(request)[1] for request in model.requests[1:]] == [[("first",)], [("first", "second")]]
    assert placed(stepper, job) == [("first", 1), ("second", 1)]


@pytest.mark.parametrize("success", [True, False])
@pytest.mark.parametrize("checks", [[], ["true"]])
def test_a_finish_decided_without_a_message_that_is_there_is_refused(
    make: Make, sandbox: CountingSandbox, checks: list[str], *, success: bool
) -> None:
    model = ScriptedModel(
        [finish("too early", success=success), finish("now")], on_decide=at({1: lambda: write(stepper, job, "one thing more")})
    )
    stepper = make(model)
    job = stepper.submit(checks=checks)
    stepper.ring()
    assert (stepper.job(job).status, stepper.job(job).phase) == (JobStatus.RUNNING, "plan")
    assert not sandbox.ran
    job = stepper.run(job)
    assert (job.status, job.answer) == (JobStatus.SUCCEEDED, "now")
    (refused,) = stepper.steps(job)[0].calls
    assert (refused.ok, refused.tool) == (False, "finish")
    assert "the user wrote" in refused.preview
    assert model.requests[1].steps[0].messages == ("one thing more",)
    assert types(stepper, job).count("checks.started") == len(checks)


@pytest.mark.parametrize("passes", [True, False])
def test_a_message_during_the_checks_keeps_the_job_going(make: Make, sandbox: CountingSandbox, *, passes: bool) -> None:
    def during() -> None:
        if stepper.job(job).messages == 0:
            write(stepper, job, "wait")

    model = ScriptedModel([finish("first"), finish("second")])
    stepper = make(model)
    job = stepper.submit(checks=["true" if passes else "test -e seen || { touch seen; false; }"])
    stepper.ring()
    sandbox.before = during
    stepper.ring()
    job = stepper.run(job)
    assert (job.status, job.answer) == (JobStatus.SUCCEEDED, "second")
    assert model.requests[1].steps[0].messages == ("wait",)
    assert [event.data["passed"] for event in stepper.events(job) if event.type == "checks.finished"] == [passes, True]


def test_a_paused_job_takes_messages_up_when_it_goes_on(make: Make) -> None:
    model = ScriptedModel([shell("true"), finish()])
    stepper = make(model)
    job = stepper.submit()
    stepper.ring()
    with stepper.runtime.database.transaction() as tx:
        steering.pause(tx, stepper.runtime, jobs.get(tx, job.id, lock=True), by="test")
    write(stepper, job, "while it waits")
    while stepper.ring():
        pass
    assert placed(stepper, job) == [("while it waits", None)]
    with stepper.runtime.database.transaction() as tx:
        steering.resume(tx, stepper.runtime, jobs.get(tx, job.id, lock=True), by="test")
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert placed(stepper, job) == [("while it waits", 1)]


def test_a_message_gives_a_job_that_is_stuck_another_chance(make: Make) -> None:
    stepper = make([shell("false")] * 3 + [finish()])
    job = stepper.submit()
    while stepper.job(job).step < 3:
        stepper.ring()
    write(stepper, job, "try something else")
    assert stepper.run(job).status is JobStatus.SUCCEEDED


def test_messages_outlast_a_compaction(make: Make) -> None:
    model = ScriptedModel([shell(f"echo {n}") for n in range(12)] + [finish()])
    stepper = make(model, context_steps=10)
    job = stepper.submit()
    for n in range(12):
        while stepper.job(job).step < n:
            stepper.ring()
        write(stepper, job, f"message {n}")
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert "context.compacted" in types(stepper, job)
    last = model.requests[-1]
    assert last.summarised > 0
    shown = [*last.messages, *(text for step in last.steps for text in step.messages)]
    assert shown == [f"message {n}" for n in range(12)]


def test_what_can_not_be_written(make: Make) -> None:
    stepper = make([finish()], message_chars=10, messages=2)
    job = stepper.submit()
    with pytest.raises(TooLarge, match="10 characters"):
        write(stepper, job, "x" * 11)
    write(stepper, job, "x" * 10)
    write(stepper, job, "y")
    with pytest.raises(LimitReached, match="has had 2 messages"):
        write(stepper, job, "z")
    cancel(stepper, job)
    with pytest.raises(JobEnded, match="ended"):
        write(stepper, job, "z")
    assert placed(stepper, job) == [("x" * 10, None), ("y", None)]


def test_messages_are_read_once_however_many_there_are(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    page = messages.page

    def counted(*arguments: Any, **more: Any) -> list[Message]:
        found = page(*arguments, **more)
        read.append(len(found))
        return found

    model = ScriptedModel([shell(f"echo {n}") for n in range(5)] + [finish()], on_decide=at({3: lambda: write(stepper, job, "late")}))
    stepper = make(model)
    job = stepper.submit()
    for n in range(40):
        write(stepper, job, f"message {n}")
    monkeypatch.setattr(messages, "page", counted)
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    texts = tuple(f"message {n}" for n in range(40))
    assert said(model.requests[-1]) == (texts, [(), (), ("late",), (), ()])
    assert [request.messages for request in model.requests] == [texts] * 6
    assert [count for count in read if count] == [40, 40, 40, 1, 1]  # before the claim, in it, once they are taken; the late one likewise


def test_messages_that_there_is_no_room_to_keep_are_shown_all_the_same(make: Make) -> None:
    model = ScriptedModel([shell("echo 1"), shell("echo 2"), finish()])
    stepper = make(model, history_chars=2000)
    job = stepper.submit()
    for n in range(3):
        write(stepper, job, f"{n}" * 1000)
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert [[text[0] for text in request.messages] for request in model.requests] == [["0", "1", "2"]] * 3
