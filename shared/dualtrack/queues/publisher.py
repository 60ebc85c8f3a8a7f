"""The doorbell on RabbitMQ: publishes Celery task messages, confirmed by the broker, on a connection kept open between rings.

It writes Celery's message protocol 2 itself (https://docs.celeryq.dev/en/stable/internals/protocol.html): `apply_async` was
measured at almost half of a worker's CPU.
"""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections.abc import Callable
from typing import Any, Final, TypeVar

from amqp.exceptions import AMQPError, MessageNacked
from kombu import Connection, Producer
from kombu.exceptions import KombuError

from dualtrack.domain.errors import BrokerUnavailable
from dualtrack.faults import Fault, copies, point
from dualtrack.queues.port import Task
from dualtrack.queues.topology import Topology
from dualtrack.settings import BrokerSettings

_T = TypeVar("_T")
_TIMEOUT_S: Final = 5.0
_MAX_IDLE: Final = 32
_ERRORS: Final = (OSError, KombuError, AMQPError, MessageNacked)
_HINT: Final = "check RabbitMQ and DUALTRACK_BROKER__URL"


class _Line:
    """An open connection with confirms on, and its producer. Raises one of `_ERRORS` when it can't be opened."""

    def __init__(self, url: str, topology: Topology) -> None:
        # Heartbeats are off: nobody would send them between two rings; a dead connection shows at the next publish.
        options = {"confirm_publish": True, "read_timeout": _TIMEOUT_S}
        self._connection = Connection(url, connect_timeout=_TIMEOUT_S, heartbeat=0, transport_options=options)
        try:
            self._connection.connect()  # once; `default_channel` would go on trying
            self.channel = self._connection.default_channel
            for queue in topology.queues():
                queue(self.channel).declare()
        except BaseException:
            self.hang_up()
            raise
        self.producer = Producer(self.channel)

    def waiting(self, queue: str) -> int:
        """Messages ready in a queue."""
        channel: Any = self.channel  # the stub knows only the general channel
        return int(channel.queue_declare(queue, passive=True).message_count)

    def hang_up(self) -> None:
        """Drop it, however broken it is: without the closing handshake, which a stalled broker would not answer."""
        with contextlib.suppress(*_ERRORS):
            self._connection.collect()


class Publisher:
    """Publishes persistent messages with publisher confirms.

    As many connections are open as threads ever published at once, at most `_MAX_IDLE` of them while nobody does; they belong to no thread,
    since a server's threads come and go.
    """

    def __init__(self, settings: BrokerSettings) -> None:
        self._url = settings.url.get_secret_value()
        self._topology = Topology(settings.prefix)
        self._names = {task: self._topology.name(task) for task in Task}
        self._exchange = self._topology.exchange.name
        self._idle: list[_Line] = []
        self._lock = threading.Lock()
        self._closed = False

    def plan(self, job_id: str, *, priority: int = 0, traceparent: str | None = None) -> None:
        """Ring for the planner."""
        self._publish(Task.PLAN, job_id, priority, traceparent)

    def execute(self, call_id: str, *, priority: int = 0, traceparent: str | None = None) -> None:
        """Ring for an executor."""
        self._publish(Task.EXECUTE, call_id, priority, traceparent)

    def backlog(self, task: Task) -> int:
        """Messages that no worker has taken yet."""
        return self._use(lambda line: line.waiting(self._names[task]))

    def check(self) -> None:
        """A connection must answer; a new one finds or makes every queue."""
        self.backlog(Task.PLAN)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._closed = True
        self._drop_idle()

    def _publish(self, task: Task, row_id: str, priority: int, traceparent: str | None) -> None:
        for _ in range(copies(Fault.PUBLISH, row_id)):
            self._use(lambda line: self._send(line.producer, task, row_id, priority, traceparent))
        point(Fault.PUBLISHED, row_id)

    def _use(self, act: Callable[[_Line], _T]) -> _T:
        """Act on a line. A kept one may have died unnoticed, and its siblings with it: then once more on a new one, the others dropped."""
        line, kept = self._take()
        try:
            result = act(line)
        except _ERRORS as error:
            line.hang_up()
            if not kept:
                raise _unavailable(error) from error
            self._drop_idle()
            return self._use(act)
        self._give_back(line)
        return result

    def _take(self) -> tuple[_Line, bool]:
        """A line of its own, and whether it was kept from an earlier ring."""
        with self._lock:
            if self._idle:
                return self._idle.pop(), True
        try:
            return _Line(self._url, self._topology), False
        except _ERRORS as error:
            raise _unavailable(error) from error

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for line in idle:
            line.hang_up()

    def _give_back(self, line: _Line) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _MAX_IDLE:
                self._idle.append(line)
                return
        line.hang_up()

    def _send(self, producer: Producer, task: Task, row_id: str, priority: int, traceparent: str | None) -> None:
        # Of protocol 2 what Celery can't do without; each further header is read by it in pure Python.
        headers = {"lang": "py", "task": task.value, "id": str(uuid.uuid4())}
        if traceparent:
            headers["traceparent"] = traceparent
        producer.publish(
            json.dumps([[row_id], {}, {}]),
            exchange=self._exchange,
            routing_key=self._names[task],
            content_type="application/json",
            content_encoding="utf-8",
            headers=headers,
            delivery_mode=2,
            priority=priority,
            mandatory=True,
            timeout=_TIMEOUT_S,
        )


def _unavailable(error: Exception) -> BrokerUnavailable:
    return BrokerUnavailable(f"The broker can't be reached or refuses ({type(error).__name__}); {_HINT}.")
