"""The doorbell: messages carry ids and trace context, the database has everything else (design rule 1).

Adapters: `queues.publisher` (Celery messages on RabbitMQ), `queues.in_process` (threads, for standalone).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from dualtrack.queues import homes
from dualtrack.work import Work


class Task(StrEnum):
    """The two kinds of work; also the names of the Celery tasks."""

    PLAN = "dualtrack.plan"
    EXECUTE = "dualtrack.execute"


class Ring(NamedTuple):
    """What a worker is told: that a job (`Task.PLAN`) or a call (`Task.EXECUTE`) is due."""

    task: Task
    row_id: str
    priority: int = 0
    traceparent: str | None = None
    home: str | None = None
    """Where the job is at home, see `queues.homes`."""


def ring_for(task: Task, row_id: str, *, priority: int = 0, traceparent: str | None = None) -> Ring:
    """A ring that tells of the home of the job whose message this thread works on."""
    return Ring(task, row_id, priority, traceparent, homes.current())


Rung = Callable[[], Sequence[str]]
"""Gives, at the last moment, the rows of the messages that have come."""
Begins = Callable[[Rung], Sequence[Any]]
"""Claims rows for many messages at once where that is all there is to do first: what `Handles` is to be told of each; false where not.

Where it raises, nobody works on what may have been claimed, until whoever claims rows notices that.
"""
Handles = Callable[[str, Any], Work[None]]
"""Does what a message for a row asks for, given what `Begins` said of the row, or None, and writes down whatever happens.

Raises `NotFound` where there is no such row.
"""


class Doorbell(Protocol):
    """Tells workers that rows are due. Losing or repeating a ring does no harm. Thread-safe."""

    def ring(self, rings: Sequence[Ring]) -> None:
        """Ring for all of them. Raises `BrokerUnavailable`: some of them may not have been heard."""
        ...

    def backlog(self, task: Task) -> int:
        """Rings that nobody has taken yet. Raises `BrokerUnavailable`."""
        ...

    def check(self) -> None:
        """Raise `BrokerUnavailable`, saying what is wrong, unless a message can be published now."""
        ...
