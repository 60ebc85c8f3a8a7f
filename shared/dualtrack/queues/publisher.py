"""The doorbell on RabbitMQ: publishes Celery task messages, confirmed by the broker, on a cached channel per thread.

It writes Celery's message protocol 2 itself (https://docs.celeryq.dev/en/stable/internals/protocol.html): `apply_async` was
measured at almost half of a worker's CPU.
"""

from __future__ import annotations

import threading
import uuid
from typing import Any, Final

from amqp.exceptions import AMQPError
from kombu import Connection, Producer
from kombu.exceptions import KombuError

from dualtrack.domain.errors import BrokerUnavailable
from dualtrack.queues.topology import Task, Topology
from dualtrack.settings import BrokerSettings

_TIMEOUT_S: Final = 5.0
_ERRORS: Final = (OSError, KombuError, AMQPError)
_HINT: Final = "check RabbitMQ and DUALTRACK_BROKER__URL"


class Publisher:
    """Publishes persistent messages with publisher confirms. One connection and channel per thread, made at first use."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._url = settings.url.get_secret_value()
        self._topology = Topology(settings.prefix)
        self._local = threading.local()
        self._lock = threading.Lock()
        self._connections: list[Connection] = []

    def plan(self, job_id: str, *, priority: int = 0, traceparent: str | None = None) -> None:
        """Ring for the planner."""
        self._publish(Task.PLAN, job_id, priority, traceparent)

    def execute(self, call_id: str, *, priority: int = 0, traceparent: str | None = None) -> None:
        """Ring for an executor."""
        self._publish(Task.EXECUTE, call_id, priority, traceparent)

    def check(self) -> None:
        """A fresh connection must open and every queue exist or be made."""
        try:
            with Connection(self._url, connect_timeout=_TIMEOUT_S) as connection:
                for queue in self._topology.queues():
                    queue(connection.default_channel).declare()
        except _ERRORS as error:
            raise BrokerUnavailable(f"The broker can't be reached or refuses ({type(error).__name__}); {_HINT}.") from error

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            for connection in self._connections:
                connection.release()
            self._connections.clear()

    def _publish(self, task: Task, row_id: str, priority: int, traceparent: str | None) -> None:
        for last in (False, True):  # a cached connection may have died unnoticed: once more on a new one
            try:
                producer = self._producer()
                self._send(producer, task, row_id, priority, traceparent)
            except _ERRORS as error:
                self._drop()
                if last:
                    raise BrokerUnavailable(f"The broker did not take a message ({type(error).__name__}); {_HINT}.") from error
            else:
                return

    def _producer(self) -> Producer:
        cached: Producer | None = getattr(self._local, "producer", None)
        if cached is not None:
            return cached
        # Heartbeats are off: nobody would send them between two rings; a dead connection shows at the next publish.
        connection = Connection(
            self._url, connect_timeout=_TIMEOUT_S, heartbeat=0, transport_options={"confirm_publish": True, "read_timeout": _TIMEOUT_S}
        )
        self._local.connection = connection
        with self._lock:
            self._connections.append(connection)
        for queue in self._topology.queues():
            queue(connection.default_channel).declare()
        producer = Producer(connection.default_channel)
        self._local.producer = producer
        return producer

    def _send(self, producer: Producer, task: Task, row_id: str, priority: int, traceparent: str | None) -> None:
        message_id = str(uuid.uuid4())
        headers: dict[str, Any] = {
            "lang": "py",
            "task": task.value,
            "id": message_id,
            "root_id": message_id,
            "parent_id": None,
            "group": None,
            "retries": 0,
            "eta": None,
            "expires": None,
            "timelimit": [None, None],
            "argsrepr": f"({row_id!r},)",
            "kwargsrepr": "{}",
            "origin": "dualtrack",
            "ignore_result": True,
        }
        if traceparent:
            headers["traceparent"] = traceparent
        producer.publish(
            [[row_id], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}],
            exchange=self._topology.exchange.name,
            routing_key=self._topology.name(task),
            serializer="json",
            headers=headers,
            correlation_id=message_id,
            delivery_mode=2,
            priority=priority,
            mandatory=True,
            timeout=_TIMEOUT_S,
        )

    def _drop(self) -> None:
        connection: Connection | None = getattr(self._local, "connection", None)
        self._local.__dict__.clear()
        if connection is not None:
            with self._lock:
                if connection in self._connections:
                    self._connections.remove(connection)
            try:
                connection.release()
            except _ERRORS:  # it was broken already
                return
