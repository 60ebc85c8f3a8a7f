"""A doorbell for the scheduler, which may have hundreds of rings in a tick and must not wait for a broker that is away at each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from dualtrack.domain.errors import BrokerUnavailable
from dualtrack.queues.port import Doorbell, Ring, Task

_T = TypeVar("_T")


class OneTry:
    """Once the broker has failed, it fails at once until told to try again: what is rung for is due, and rung for again. Thread-safe."""

    def __init__(self, doorbell: Doorbell) -> None:
        self._doorbell = doorbell
        self._failure: str | None = None

    def again(self) -> None:
        """Try again from now on."""
        self._failure = None

    def ring(self, rings: Sequence[Ring]) -> None:
        """As the port says."""
        self._try(lambda: self._doorbell.ring(rings))

    def backlog(self, task: Task) -> int:
        """As the port says."""
        return self._try(lambda: self._doorbell.backlog(task))

    def check(self) -> None:
        """As the port says."""
        self._try(self._doorbell.check)

    def _try(self, act: Callable[[], _T]) -> _T:
        if self._failure is not None:
            raise BrokerUnavailable(self._failure)
        try:
            return act()
        except BrokerUnavailable as error:
            self._failure = error.message
            raise
