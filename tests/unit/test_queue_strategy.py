"""How a worker takes and acknowledges messages, without a broker."""

import gc
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import InvalidTaskError, Reject
from celery.worker import state

from dualtrack.domain.errors import DatabaseUnavailable
from dualtrack.queues import homes
from dualtrack.queues.port import Begins, Rung
from dualtrack.queues.strategy import HOME_KEY, TALLY, Acknowledger, Intake, take
from dualtrack.threads import Threads
from dualtrack.together import Together
from dualtrack.work import Question, Work, at_once


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


Run = Callable[..., None]


def receiver(run: Run, home: str | None = None) -> tuple[Loop, Callable[..., None]]:
    loop, threads = Loop(), AtOnce(8, "test")
    consumer = SimpleNamespace(hub=loop, pool=SimpleNamespace(threads=threads), connection_errors=(OSError,))
    app = SimpleNamespace(conf={HOME_KEY: home})
    task = SimpleNamespace(name="plan", run=lambda *args, **more: at_once(lambda: run(*args, **more)))
    return loop, take(task, app, consumer)


class AtOnce(Threads):
    """Does everything in the thread that asks for it."""

    def put(self, work: Callable[[], None], *, awake: bool = False, last: bool = False) -> None:
        work()


def test_a_ring_is_handed_over_with_its_redelivery_and_counted() -> None:
    seen: list[tuple[str, bool]] = []
    loop, receive = receiver(lambda row_id, begun, *, redelivered: seen.append((row_id, redelivered)))
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
    _, receive = receiver(lambda row_id, begun, *, redelivered: seen.append(redelivered))
    for reason in ("expired", "rejected"):
        message = Message(1, [])
        message.headers["x-first-death-reason"] = reason
        receive(message)
    assert seen == [True, False]


def test_a_planner_knows_where_the_job_is_at_home_and_an_executor_is_it() -> None:
    seen: list[str | None] = []
    _, plan = receiver(lambda row_id, begun, *, redelivered: seen.append(homes.current()))
    _, execute = receiver(lambda row_id, begun, *, redelivered: seen.append(homes.current()), home="there")
    message = Message(1, [])
    plan(message)
    message.headers[homes.HEADER] = "elsewhere"
    plan(message)
    execute(message)
    assert seen == [None, "elsewhere", "there"]
    assert homes.current() is None


@pytest.mark.parametrize(("error", "answer"), [(RuntimeError("broken"), "ack"), (Reject("no such row", requeue=False), "reject")])
def test_a_failing_handler_does_not_keep_its_message(error: Exception, answer: str) -> None:
    def run(row_id: str, begun: object, *, redelivered: bool) -> None:
        raise error

    loop, receive = receiver(run)
    sent: list[tuple[Any, ...]] = []
    receive(Message(1, sent))
    loop.turn()
    assert [kind for kind, *_ in sent] == [answer]
    assert TALLY.active == 0


def test_a_panic_of_a_library_gives_the_place_back_and_keeps_no_message() -> None:
    class Panic(BaseException):
        """As those of libraries in Rust."""

    def run(row_id: str, begun: object, *, redelivered: bool) -> None:
        raise Panic

    loop, receive = receiver(run)
    sent: list[tuple[Any, ...]] = []
    receive(Message(1, sent))
    loop.turn()
    assert sent == [("ack", 1, False)]
    assert TALLY.active == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it is dropped outside of its context
def test_what_is_given_up_half_done_is_not_acknowledged() -> None:
    def stands_still(row_id: str, begun: object, *, redelivered: bool) -> Work[None]:
        yield Question(Together(lambda requests: requests, shared=()), 1)

    loop, threads = Loop(), Later()
    consumer = SimpleNamespace(hub=loop, pool=SimpleNamespace(threads=threads), connection_errors=(OSError,))
    receive = take(SimpleNamespace(name="plan", run=stands_still), SimpleNamespace(conf={}), consumer)
    sent: list[tuple[Any, ...]] = []
    receive(Message(1, sent))
    threads.asked.pop(0)()
    threads.asked.clear()  # nobody ever answers, and the work is dropped
    gc.collect()
    loop.turn()
    assert sent == []
    assert TALLY.active == 0


@pytest.mark.parametrize("body", ["", "{", "[]", "null", "[[]]", '[["a", "b"], {}, {}]', "[[1], {}, {}]", json.dumps({"args": ["x"]})])
def test_what_is_no_ring_is_told_to_celery_which_rejects_it(body: str) -> None:
    _, receive = receiver(lambda row_id, begun, *, redelivered: None)
    with pytest.raises(InvalidTaskError):
        receive(Message(1, [], body=body))
    with pytest.raises(InvalidTaskError):
        receive(Message(1, [], content_type="application/x-python-serialize"))


class Later(Threads):
    """Threads that work when the test lets them."""

    def __init__(self, most: int = 8) -> None:
        super().__init__(most, "test")
        self.asked: list[Callable[[], None]] = []

    def put(self, work: Callable[[], None], *, awake: bool = False, last: bool = False) -> None:
        self.asked.append(work)

    def turn(self) -> None:
        while self.asked:
            self.asked.pop(0)()


def intake(threads: Threads, begin: Begins | None) -> tuple[Intake, list[tuple[str, Any]]]:
    seen: list[tuple[str, Any]] = []

    def see(row_id: str, begun: object) -> None:
        seen.append((row_id, begun))
        TALLY.end()

    return Intake(lambda _, row_id, begun=None: at_once(lambda: see(row_id, begun)), threads, begin), seen


def test_rows_of_messages_that_have_come_are_begun_together_and_each_seen_to_by_itself() -> None:
    together: list[list[str]] = []

    def begin(rung: Rung) -> list[str | None]:
        taking.take(Message(4, []), "late")  # one more comes before it is their turn
        together.append(list(rung()))
        return [None if row_id == "odd" else f"begun {row_id}" for row_id in together[-1]]

    threads = Later()
    taking, seen = intake(threads, begin)
    for tag, row_id in enumerate(("a", "odd", "c"), 1):
        taking.take(Message(tag, []), row_id)
    assert len(threads.asked) == 1
    threads.asked.pop()()
    assert together == [["a", "odd", "c", "late"]]
    assert len(threads.asked) == 4
    assert seen == []
    threads.turn()
    assert seen == [("a", "begun a"), ("odd", None), ("c", "begun c"), ("late", "begun late")]
    assert TALLY.active == 0


@pytest.mark.parametrize("before", [True, False])
def test_what_can_not_be_begun_together_is_seen_to_one_by_one(before: bool) -> None:
    def begin(rung: Rung) -> list[object]:
        if not before:
            rung()
        raise DatabaseUnavailable("away")

    threads = Later()
    taking, seen = intake(threads, begin)
    for tag, row_id in enumerate(("a", "b"), 1):
        taking.take(Message(tag, []), row_id)
    threads.turn()
    assert seen == [("a", None), ("b", None)]
    assert TALLY.active == 0


def test_what_is_begun_when_the_worker_is_told_to_stop_is_done() -> None:
    def begin(rung: Rung) -> list[object]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(state, "should_stop", 0)
            return [1] * len(rung())

    threads = Later()
    taking, seen = intake(threads, begin)
    for tag, row_id in enumerate(("a", "b", "c"), 1):
        taking.take(Message(tag, []), row_id)
    threads.turn()
    assert seen == [("a", 1), ("b", 1), ("c", 1)]


def test_a_worker_that_is_told_to_stop_begins_nothing_more_and_leaves_it_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Later()
    taking, seen = intake(threads, lambda rung: [1] * len(rung()))
    for tag, row_id in enumerate(("a", "b", "c"), 1):
        taking.take(Message(tag, []), row_id)
    monkeypatch.setattr(state, "should_stop", 0)
    threads.turn()
    assert seen == []
    assert TALLY.active == 0


def test_nor_what_came_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Later()
    taking, seen = intake(threads, None)
    taking.take(Message(1, []), "a")
    monkeypatch.setattr(state, "should_stop", 0)
    threads.turn()
    assert seen == []
    assert TALLY.active == 0


def test_messages_that_were_with_another_or_find_no_thread_are_not_begun_with_others() -> None:
    threads = Later(most=1)
    taking, seen = intake(threads, lambda rung: [1] * len(rung()))
    again = Message(1, [])
    again.delivery_info["redelivered"] = True
    taking.take(again, "again")
    taking.take(Message(2, []), "one too many")
    threads.turn()
    assert seen == [("again", None), ("one too many", None)]
