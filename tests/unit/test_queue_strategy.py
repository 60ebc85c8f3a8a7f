"""How a worker takes and acknowledges messages, without a broker."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import InvalidTaskError, Reject

from dualtrack.queues import homes
from dualtrack.queues.strategy import HOME_KEY, TALLY, Acknowledger, take


class Message:
    def __init__(
        self, tag: int, sent: list[tuple[Any, ...]], body: str = '[["row"], {}, {}]', content_type: str = "application/json"
    ) -> None:
        self.delivery_tag = tag
        self.delivery_info: dict[str, Any] = {"redelivered": False}
        self.headers: dict[str, Any] = {}
        self.body = body
        self.content_type = content_type
        self._sent = sent

    def ack_log_error(self, logger: object, errors: object, multiple: bool = False) -> None:
        self._sent.append(("ack", self.delivery_tag, multiple))

    def reject_log_error(self, logger: object, errors: object, requeue: bool = False) -> None:
        self._sent.append(("reject", self.delivery_tag, requeue))


class Loop:
    """The thread of the channel: does what it was asked for when the test lets it."""

    def __init__(self) -> None:
        self.asked: list[Callable[[], None]] = []

    def call_soon(self, act: Callable[[], None]) -> None:
        self.asked.append(act)

    def turn(self) -> None:
        asked, self.asked = self.asked, []
        for act in asked:
            act()


def taken(count: int) -> tuple[Loop, Acknowledger, list[Message], list[tuple[Any, ...]]]:
    loop, sent = Loop(), list[tuple[Any, ...]]()
    acknowledger = Acknowledger(loop.call_soon, (OSError,))
    messages = [Message(tag, sent) for tag in range(1, count + 1)]
    for message in messages:
        acknowledger.taken(message)
    return loop, acknowledger, messages, sent


def test_messages_handled_together_are_acknowledged_together() -> None:
    loop, acknowledger, messages, sent = taken(3)
    for message in (messages[1], messages[0], messages[2]):
        acknowledger.handled(message)
    assert sent == []  # only the channel's own thread writes to it
    assert len(loop.asked) == 1
    loop.turn()
    assert sent == [("ack", 3, True)]


def test_a_message_still_at_work_is_never_acknowledged_with_later_ones() -> None:
    loop, acknowledger, messages, sent = taken(4)
    acknowledger.handled(messages[3])
    acknowledger.handled(messages[2])
    loop.turn()
    assert sent == [("ack", 3, False), ("ack", 4, False)]
    acknowledger.handled(messages[0])
    loop.turn()
    assert sent[2:] == [("ack", 1, False)]
    acknowledger.handled(messages[1])
    loop.turn()
    assert sent[3:] == [("ack", 2, False)]


def test_a_refused_message_is_rejected_and_not_acknowledged_with_others() -> None:
    loop, acknowledger, messages, sent = taken(2)
    acknowledger.refused(messages[0])
    acknowledger.handled(messages[1])
    loop.turn()
    assert sent == [("reject", 1, False), ("ack", 2, False)]


def test_a_refused_message_is_not_acknowledged_with_later_ones_before_it_is_rejected() -> None:
    loop, acknowledger, messages, sent = taken(3)
    acknowledger.handled(messages[1])
    acknowledger.handled(messages[2])
    acknowledger.refused(messages[0])  # the others are acknowledged first
    loop.turn()
    assert sent == [("ack", 2, False), ("ack", 3, False), ("reject", 1, False)]


def receiver(run: Callable[..., None], home: str | None = None) -> tuple[Loop, Callable[..., None]]:
    loop = Loop()
    pool = SimpleNamespace(apply_async=lambda act, arguments: act(*arguments))
    consumer = SimpleNamespace(hub=loop, pool=pool, connection_errors=(OSError,))
    app = SimpleNamespace(conf={HOME_KEY: home})
    return loop, take(SimpleNamespace(name="plan", run=run), app, consumer)


def test_a_ring_is_handed_over_with_its_redelivery_and_counted() -> None:
    seen: list[tuple[str, bool]] = []
    loop, receive = receiver(lambda row_id, *, redelivered: seen.append((row_id, redelivered)))
    sent: list[tuple[Any, ...]] = []
    before = TALLY.taken
    receive(Message(1, sent))
    again = Message(2, sent)
    again.delivery_info["redelivered"] = True
    receive(again)
    loop.turn()
    assert seen == [("row", False), ("row", True)]
    assert sent == [("ack", 2, True)]
    assert (TALLY.taken - before, TALLY.active) == (2, 0)


def test_what_an_executor_left_when_it_died_was_with_another() -> None:
    seen: list[bool] = []
    _, receive = receiver(lambda row_id, *, redelivered: seen.append(redelivered))
    for reason in ("expired", "rejected"):
        message = Message(1, [])
        message.headers["x-first-death-reason"] = reason
        receive(message)
    assert seen == [True, False]


def test_a_planner_knows_where_the_job_is_at_home_and_an_executor_is_it() -> None:
    seen: list[str | None] = []
    _, plan = receiver(lambda row_id, *, redelivered: seen.append(homes.current()))
    _, execute = receiver(lambda row_id, *, redelivered: seen.append(homes.current()), home="there")
    message = Message(1, [])
    plan(message)
    message.headers[homes.HEADER] = "elsewhere"
    plan(message)
    execute(message)
    assert seen == [None, "elsewhere", "there"]
    assert homes.current() is None


@pytest.mark.parametrize(("error", "answer"), [(RuntimeError("broken"), "ack"), (Reject("no such row", requeue=False), "reject")])
def test_a_failing_handler_does_not_keep_its_message(error: Exception, answer: str) -> None:
    def run(row_id: str, *, redelivered: bool) -> None:
        raise error

    loop, receive = receiver(run)
    sent: list[tuple[Any, ...]] = []
    receive(Message(1, sent))
    loop.turn()
    assert [kind for kind, *_ in sent] == [answer]
    assert TALLY.active == 0


@pytest.mark.parametrize("body", ["", "{", "[]", "null", "[[]]", '[["a", "b"], {}, {}]', "[[1], {}, {}]", json.dumps({"args": ["x"]})])
def test_what_is_no_ring_is_told_to_celery_which_rejects_it(body: str) -> None:
    _, receive = receiver(lambda row_id, *, redelivered: None)
    with pytest.raises(InvalidTaskError):
        receive(Message(1, [], body=body))
    with pytest.raises(InvalidTaskError):
        receive(Message(1, [], content_type="application/x-python-serialize"))
