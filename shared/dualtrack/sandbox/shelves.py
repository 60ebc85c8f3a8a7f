"""What a pool keeps under its lock: the warm sandboxes of each kind, and the cold starts that somebody waits for. No IO."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dualtrack.sandbox.demand import Demand
from dualtrack.sandbox.pooled import PooledSession
from dualtrack.sandbox.sessions import SessionRequest

REFILL_S: Final = 0.02
"""A refill waits this long after a claim: it takes as long and longer, and should not disturb the first steps of what was just claimed."""
BACKOFF_S: Final = 0.5
"""Pause after the first failed start; doubles with each."""
BACKOFF_MAX_S: Final = 30.0


class Kind(NamedTuple):
    """What sandboxes that can stand in for each other have in common."""

    template: str
    writable: bool

    @classmethod
    def of(cls, request: SessionRequest) -> Kind:
        """Of a request that names its template."""
        return cls(request.template or "", request.writable)


@dataclass(eq=False, slots=True)
class Shelf:
    """The warm sandboxes of one kind. Times are monotonic seconds."""

    kind: Kind
    minimum: int
    maximum: int
    warm: deque[tuple[PooledSession, float]] = field(default_factory=deque)
    """With the time at which each was last known to live, the oldest first; claims take the last, checks the first."""
    starting: int = 0
    """Being started, or being asked whether they live."""
    demand: Demand = field(default_factory=Demand)
    failures: int = 0
    """Starts that failed since the last one that did not."""
    problem: str = ""
    """What the last of them said."""
    not_before: float = 0.0
    """No refill before this."""

    def spare(self, now: float) -> int:
        """How many there are beyond those that should be; negative: how many are missing."""
        return len(self.warm) + self.starting - self.demand.wanted(now, self.minimum, self.maximum)

    def take(self, now: float) -> PooledSession | None:
        """The freshest, for a claim."""
        self.demand.claimed(now)
        if not self.warm:
            return None
        self.not_before = max(self.not_before, now + REFILL_S)
        return self.warm.pop()[0]

    def take_oldest(self) -> PooledSession:
        """The one that was asked the longest ago."""
        return self.warm.popleft()[0]

    def put(self, session: PooledSession, now: float) -> None:
        """One that was started or asked, and lives."""
        self.starting -= 1
        self.warm.append((session, now))

    def failed(self, problem: str, now: float) -> float:
        """A start has failed; the seconds until the next may be tried."""
        self.starting -= 1
        self.failures += 1
        self.problem = problem
        pause = min(BACKOFF_S * 2.0 ** (self.failures - 1), BACKOFF_MAX_S)
        self.not_before = now + pause
        return pause


@dataclass(eq=False, slots=True)
class Order:
    """A cold start that somebody waits for."""

    request: SessionRequest
    served: threading.Event = field(default_factory=threading.Event)
    session: PooledSession | None = None
    error: BaseException | None = None
    abandoned: bool = False
    """Whoever waited for it is gone."""
