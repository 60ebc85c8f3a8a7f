"""The doorbell on RabbitMQ: publishes Celery task messages, confirmed by the broker, on a connection kept open between rings.

It writes Celery's message protocol 2 itself (https://docs.celeryq.dev/en/stable/internals/protocol.html): `apply_async` was
measured at almost half of a worker's CPU. What threads ring for at the same time goes out together and is waited for once.
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from amqp.exceptions import AMQPError, MessageNacked
from kombu import Connection
from kombu.exceptions import KombuError

from dualtrack.domain.errors import BrokerUnavailable
from dualtrack.faults import Fault, copies, point
from dualtrack.queues import homes
from dualtrack.queues.port import Ring, Task
from dualtrack.queues.topology import Topology
from dualtrack.queues.wire import Address, receive
from dualtrack.settings import BrokerSettings
from dualtrack.together import Together

_T = TypeVar("_T")
_TIMEOUT_S: Final = 5.0
_MAX_IDLE: Final = 32
_ERRORS: Final = (OSError, KombuError, AMQPError, MessageNacked)
_HINT: Final = "check RabbitMQ and DUALTRACK_BROKER__URL"


class _Line:
    """An open connection with confirms on. Raises one of `_ERRORS` when it can't be opened."""

    def __init__(self, url: str, topology: Topology) -> None:
        # Heartbeats are off: nobody would send them between two rings; a dead connection shows at the next publish.
        options = {"read_timeout": _TIMEOUT_S, "write_timeout": _TIMEOUT_S}
        self._connection = Connection(url, connect_timeout=_TIMEOUT_S, heartbeat=0, transport_options=options)
        try:
            self._connection.connect()  # once; `default_channel` would go on trying
            channel: Any = self._connection.default_channel  # the stub knows only the general channel
            self.channel = channel
            for queue in topology.queues():
                queue(channel).declare()
            topology.homes(channel).declare()
            channel.confirm_select()
        except BaseException:
            self.hang_up()
            raise
        self._published = 0
        self._unconfirmed: set[int] = set()
        self.channel.events["basic_ack"].add(self._confirmed)
        self.channel.events["basic_nack"].add(self._refused)

    def publish(self, messages: Sequence[bytes]) -> None:
        """Publish messages, as frames, and wait until the broker has confirmed all of them. Raises one of `_ERRORS`."""
        self._unconfirmed.update(range(self._published + 1, self._published + len(messages) + 1))
        self._published += len(messages)
        connection = self.channel.connection
        connection.transport.write(b"".join(messages))
        while self._unconfirmed:
            receive(connection, wait=True)

    def _confirmed(self, tag: int, multiple: bool) -> None:  # noqa: FBT001 - as py-amqp calls it
        if multiple:
            self._unconfirmed = {other for other in self._unconfirmed if other > tag}
        else:
            self._unconfirmed.discard(tag)

    def _refused(self, *_: object) -> None:
        raise MessageNacked

    def waiting(self, queue: str) -> int:
        """Messages ready in a queue."""
        return int(self.channel.queue_declare(queue, passive=True).message_count)

    def hang_up(self) -> None:
        """Drop it, however broken it is: without the closing handshake, which a stalled broker would not answer."""
        with contextlib.suppress(*_ERRORS):
            self._connection.collect()


class Publisher:
    """Publishes persistent messages with publisher confirms.

    Connections belong to no thread, since a server's threads come and go; at most `_MAX_IDLE` of them are kept while nobody publishes.
    """

    def __init__(self, settings: BrokerSettings) -> None:
        self._url = settings.url.get_secret_value()
        self._topology = Topology(settings.prefix)
        self._names = {task: self._topology.name(task) for task in Task}
        self._addresses = {task: Address(self._topology.exchange.name, name) for task, name in self._names.items()}
        homes_exchange = self._topology.homes.name
        self._at_home = functools.lru_cache(maxsize=256)(lambda home: Address(homes_exchange, home))
        self._rings = Together(self._send, shared=(BrokerUnavailable,))
        self._idle: list[_Line] = []
        self._lock = threading.Lock()
        self._closed = False

    def ring(self, rings: Sequence[Ring]) -> None:
        """Publish them in one go, and wait until the broker has confirmed all."""
        heard = [ring for ring in rings for _ in range(copies(Fault.PUBLISH, ring.row_id))]
        if heard:
            self._rings.do(heard)
        for ring in rings:
            point(Fault.PUBLISHED, ring.row_id)

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

    def _send(self, asked: Sequence[Sequence[Ring]]) -> Sequence[None]:
        self._use(lambda line: line.publish([self._frames(line.channel.channel_id, ring) for rings in asked for ring in rings]))
        return [None] * len(asked)

    def _frames(self, channel: int, ring: Ring) -> bytes:
        # Of protocol 2 what Celery can't do without; each further header is read by it in pure Python.
        headers = {"lang": "py", "task": ring.task.value, "id": str(uuid.uuid4())}
        address = self._addresses[ring.task]
        if ring.traceparent:
            headers["traceparent"] = ring.traceparent
        if ring.home is not None and ring.task is Task.PLAN:
            headers[homes.HEADER] = ring.home
        elif ring.home is not None:
            address = self._at_home(ring.home)
        return address.message(channel, json.dumps([[ring.row_id], {}, {}]).encode(), headers, ring.priority)


def _unavailable(error: Exception) -> BrokerUnavailable:
    return BrokerUnavailable(f"The broker can't be reached or refuses ({type(error).__name__}); {_HINT}.")
