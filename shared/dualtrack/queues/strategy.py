"""How a worker takes a message: Celery's strategy (the place where it lets a task say so) for our two tasks.

Celery's own builds a request with tracing, signals and results for each message, which was half of a planner's CPU; a ring needs none
of it. What is kept is its pool, its connection with all its recovery, and its event loop, in whose thread acknowledgements are sent.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from celery.exceptions import InvalidTaskError, Reject
from celery.worker import state

from dualtrack.faults import Fault, point
from dualtrack.queues import homes
from dualtrack.queues.port import Begins
from dualtrack.queues.wire import Deliveries, Delivery
from dualtrack.threads import Threads
from dualtrack.work import Piece, Work

_LOG: Final = logging.getLogger(__name__)
STRATEGY: Final = f"{__name__}:take"
HOME_KEY: Final = "dualtrack_home"
"""Of Celery's configuration: the name of the executor that this process is."""
BEGIN_KEY: Final = "dualtrack_begin"
"""Of Celery's configuration: the `Begins` of this process; None: it has none."""
_CONTENT_TYPE: Final = "application/json"


class Tally:
    """How many messages this process has taken, and how many of them are at work. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.taken = 0
        self.active = 0

    def begin(self) -> None:
        """One more is at work."""
        with self._lock:
            self.taken += 1
            self.active += 1

    def end(self) -> None:
        """One less is at work."""
        with self._lock:
            self.active -= 1


TALLY: Final = Tally()
"""This process's; it outlives connections, as Celery's own counts do."""


class Acknowledger:
    """Acknowledges messages of one channel once they are handled: several in one go where none before them is still at work.

    `soon` has a function called in the thread that owns the channel; `errors` are those of a connection that is gone: the broker
    then delivers again what was not acknowledged.
    """

    def __init__(self, soon: Callable[[Callable[[], None]], object], errors: tuple[type[Exception], ...]) -> None:
        self._soon = soon
        self._errors = errors
        self._lock = threading.Lock()
        self._open: dict[int, Any] = {}  # by delivery tag, which grows
        self._handled: set[int] = set()

    def taken(self, message: Any) -> None:  # noqa: ANN401 - kombu's message
        """A message has arrived."""
        with self._lock:
            self._open[message.delivery_tag] = message

    def handled(self, message: Any) -> None:  # noqa: ANN401 - kombu's message
        """It may be acknowledged. From any thread."""
        with self._lock:
            first = not self._handled
            self._handled.add(message.delivery_tag)
        if first:
            self._soon(self._flush)

    def refused(self, message: Any) -> None:  # noqa: ANN401 - kombu's message
        """It goes to the dead letters. From any thread."""
        self._soon(lambda: self._reject(message))

    def _reject(self, message: Any) -> None:  # noqa: ANN401 - kombu's message
        # Open until the broker is told, or acknowledging those after it in one go would acknowledge it too.
        with self._lock:
            del self._open[message.delivery_tag]
        message.reject_log_error(_LOG, self._errors)

    def _flush(self) -> None:
        with self._lock:
            tags, self._handled = self._handled, set()
            front = list(itertools.takewhile(tags.__contains__, self._open))
            messages = {tag: self._open.pop(tag) for tag in tags}
        if front:
            messages[front[-1]].ack_log_error(_LOG, self._errors, multiple=len(front) > 1)
        for tag in sorted(tags.difference(front)):
            messages[tag].ack_log_error(_LOG, self._errors)
        for _ in tags:
            point(Fault.ACKNOWLEDGED)


class Intake:
    """Puts messages before threads, and before that has their rows claimed together: all that have come when it is their turn.

    Nothing that is claimed may wait for a thread. There are no more messages here than threads, but for a while after a connection
    was lost: those that come then are claimed one by one.
    """

    def __init__(self, work: Callable[..., Work[None]], threads: Threads, begin: Begins | None) -> None:
        """`work(message, row id, what it was begun with)` sees to one."""
        self._work = work
        self._threads = threads
        self._begin = begin
        self._lock = threading.Lock()
        self._came: list[tuple[Any, str]] = []

    def take(self, message: Any, row_id: str) -> None:  # noqa: ANN401 - kombu's message
        """A message has come. One that was with another consumer is seen to by itself."""
        TALLY.begin()
        if self._begin is None or _was_with_another(message) or TALLY.active > self._threads.most:
            # Behind what is claimed, and what is only to be recorded: both must not wait for a model that takes its time.
            self._threads.put(functools.partial(self._begin_one, message, row_id), last=True)
            return
        with self._lock:
            first = not self._came
            self._came.append((message, row_id))
        if first:
            self._threads.put(functools.partial(self._begin_all, self._begin))

    def _begin_one(self, message: Any, row_id: str) -> None:  # noqa: ANN401 - kombu's message
        if stopping():
            TALLY.end()
            return
        Piece(self._work(message, row_id), self._threads)()

    def _begin_all(self, begin: Begins) -> None:
        taken: list[tuple[Any, str]] = []

        def rung() -> list[str]:
            with self._lock:
                taken[:], self._came = self._came, []
            return [row_id for _, row_id in taken]

        if stopping():  # the broker gives them to others once this process is gone
            for _ in rung():
                TALLY.end()
            return
        begun: Sequence[Any | None] = []
        try:
            begun = begin(rung)
        except BaseException as error:  # noqa: BLE001 - each meets it again by itself, and says so
            _LOG.debug("not begun together: %r", error)
        for (message, row_id), what in zip(taken, begun or [None] * len(taken or rung()), strict=True):
            self._threads.put(Piece(self._work(message, row_id, what), self._threads), awake=True)


def stopping() -> bool:
    """Whether Celery was told to end this process."""
    asked: list[object] = [state.should_stop, state.should_terminate]  # None, False, or an exit status, which may be 0
    return any(status is not None and status is not False for status in asked)


def take(task: Any, app: Any, consumer: Any) -> Callable[..., None]:  # noqa: ANN401 - Celery's, which have no types here
    """What Celery calls when a consumer starts: the function that takes each of its messages. It hands the row's id to the pool.

    Nearly all messages come a shorter way, past Celery's and kombu's own: `consumer.deliveries`.
    """
    home: str | None = app.conf.get(HOME_KEY)
    soon = consumer.hub.call_soon if consumer.hub else _at_once
    acknowledger = Acknowledger(soon, consumer.connection_errors)
    run = task.run

    def work(message: Any, row_id: str, begun: Any | None = None) -> Work[None]:  # noqa: ANN401 - kombu's message, and what it was begun with
        refused: Reject | None = None
        try:
            with homes.at(home or message.headers.get(homes.HEADER)):
                try:
                    yield from run(row_id, begun, redelivered=_was_with_another(message))
                except Reject as error:
                    refused = error
                except GeneratorExit:  # it was not done: the broker has it again
                    raise
                except BaseException:  # noqa: BLE001 - whatever it is: the row's lease runs out and the scheduler rings again
                    _LOG.exception("%s %s failed", task.name, row_id)
        finally:
            TALLY.end()
        if refused is not None:
            _LOG.error("%s %s: %s; the message goes to the dead letters", task.name, row_id, refused.args[0])
            acknowledger.refused(message)
            return
        point(Fault.ACKNOWLEDGE)
        acknowledger.handled(message)

    intake = Intake(work, consumer.pool.threads, app.conf.get(BEGIN_KEY))

    def receive(message: Any, *_: object) -> None:  # noqa: ANN401 - kombu's message
        row_id = _row_id(message.body, message.content_type)
        acknowledger.taken(message)
        intake.take(message, row_id)

    def deliver(delivery: Delivery) -> bool:
        try:
            row_id = _row_id(delivery.body)
        except InvalidTaskError:
            return False
        acknowledger.taken(delivery)
        intake.take(delivery, row_id)
        return True

    consumer.deliveries = Deliveries(task.name, deliver)
    return receive


def _was_with_another(message: Any) -> bool:  # noqa: ANN401 - kombu's message
    """Whether a consumer may have begun with it and died. What its own executor left comes to others as expired there."""
    return bool(message.delivery_info.get("redelivered")) or message.headers.get("x-first-death-reason") == "expired"


def _row_id(body: bytes | str, content_type: str = _CONTENT_TYPE) -> str:
    """The one argument of the task. Raises `InvalidTaskError`, on which Celery rejects the message: it ends as a dead letter."""
    try:
        (row_id,), *_ = json.loads(body)
    except (ValueError, TypeError) as error:
        raise InvalidTaskError("The message is no ring: its body is not JSON of Celery's protocol 2 with one argument.") from error
    if not isinstance(row_id, str) or content_type != _CONTENT_TYPE:
        raise InvalidTaskError("The message is no ring: its argument is no id of a row, or its content no JSON.")
    return row_id


def _at_once(act: Callable[[], None]) -> None:
    act()
