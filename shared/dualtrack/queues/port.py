"""The doorbell: messages carry ids and trace context, the database has everything else (design rule 1).

Adapters: `queues.publisher` (Celery messages on RabbitMQ), `queues.in_process` (threads, for standalone).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol


class Task(StrEnum):
    """The two kinds of work; also the names of the Celery tasks."""

    PLAN = "dualtrack.plan"
    EXECUTE = "dualtrack.execute"


class Doorbell(Protocol):
    """Tells a worker that a row is due. Losing or repeating a ring does no harm. Thread-safe."""

    def plan(self, job_id: str, *, priority: int = 0, traceparent: str | None = None) -> None:
        """Ring for the planner. Raises `BrokerUnavailable`."""
        ...

    def execute(self, call_id: str, *, priority: int = 0, traceparent: str | None = None) -> None:
        """Ring for an executor. Raises `BrokerUnavailable`."""
        ...

    def backlog(self, task: Task) -> int:
        """Rings that nobody has taken yet. Raises `BrokerUnavailable`."""
        ...

    def check(self) -> None:
        """Raise `BrokerUnavailable`, saying what is wrong, unless a message can be published now."""
        ...
