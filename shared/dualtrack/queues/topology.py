"""Every exchange, queue and task name, in one place.

All queues are quorum queues, but for those of single executors, which go with them. What no consumer can take (a malformed message, or
one delivered `DELIVERY_LIMIT` times) ends in the dead-letter queue; that loses nothing, since a message is only a doorbell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kombu import Exchange, Queue, binding

from dualtrack.queues.port import Task

DELIVERY_LIMIT: Final = 20
"""Deliveries of one message before it is dead-lettered."""


DEAD_LETTERS: Final = 10_000
"""Dead letters kept for a look at them."""
HOME_WAIT_MS: Final = 1000
"""A call waits this long for the executor where its job is at home; then anyone may take it."""
_HOME_IDLE_MS: Final = 60_000
"""The queue of an executor that is gone is removed after this long."""
_LOOKS: Final = 1_000_000
"""Looks at a dead letter: each counts as a delivery, and RabbitMQ 4 drops a message after 20 of them unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The names of one stack on a broker."""

    prefix: str

    @property
    def exchange(self) -> Exchange:
        """Direct exchange that all work goes through."""
        return Exchange(self.prefix, type="direct", durable=True)

    @property
    def dead_exchange(self) -> Exchange:
        """Where dead letters go."""
        return Exchange(f"{self.prefix}.dead", type="fanout", durable=True)

    @property
    def homes(self) -> Exchange:
        """Where calls go whose job is at home on some executor, by its name; what reaches none of them anyone gets."""
        return Exchange(f"{self.prefix}.homes", type="direct", durable=True, arguments={"alternate-exchange": self._anyone.name})

    @property
    def _anyone(self) -> Exchange:
        return Exchange(f"{self.prefix}.anyone", type="fanout", durable=True)

    def home(self, name: str) -> Queue:
        """The queue of one executor. What it does not take in time, refuses, or leaves when it dies, anyone gets."""
        arguments: dict[str, Any] = {
            "x-message-ttl": HOME_WAIT_MS,
            "x-expires": _HOME_IDLE_MS,
            "x-dead-letter-exchange": self.exchange.name,
            "x-dead-letter-routing-key": self.name(Task.EXECUTE),
        }
        return Queue(f"{self.name(Task.EXECUTE)}.{name}", self.homes, routing_key=name, durable=True, queue_arguments=arguments)

    def name(self, task: Task) -> str:
        """The queue (and routing key) of a task."""
        return f"{self.prefix}.{task.value.removeprefix('dualtrack.')}"

    def queue(self, task: Task) -> Queue:
        """The queue of a task."""
        arguments: dict[str, Any] = {
            "x-queue-type": "quorum",
            "x-delivery-limit": DELIVERY_LIMIT,
            "x-dead-letter-exchange": self.dead_exchange.name,
        }
        key = self.name(task)
        bindings = [binding(self.exchange, key)] + ([binding(self._anyone)] if task is Task.EXECUTE else [])
        return Queue(key, self.exchange, routing_key=key, bindings=bindings, durable=True, queue_arguments=arguments)

    @property
    def dead_letters(self) -> Queue:
        """Messages that nobody could take; the oldest make room for new ones."""
        arguments: dict[str, Any] = {"x-queue-type": "quorum", "x-max-length": DEAD_LETTERS, "x-delivery-limit": _LOOKS}
        return Queue(f"{self.prefix}.dead", self.dead_exchange, durable=True, queue_arguments=arguments)

    def queues(self) -> list[Queue]:
        """All of them."""
        return [*(self.queue(task) for task in Task), self.dead_letters]
