"""A seeded plan of faults: what is struck, when and for how long. Pure; the same seed gives the same plan."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dualtrack.domain.limits import PlatformLimits
from dualtrack.faults import Fault

_SERVICES: Final = ("planner", "executor", "scheduler", "router")
_AT: Final = {
    "planner": tuple(fault for fault in Fault if fault.startswith(("db.", "broker.", "planner."))),
    "executor": tuple(fault for fault in Fault if fault.startswith(("db.", "broker.", "objects.", "executor.", "external."))),
    "scheduler": (Fault.COMMIT, Fault.COMMITTED),
    "router": (Fault.COMMIT, Fault.COMMITTED),
}
_FROZEN_S: Final = PlatformLimits().lease_s + 3
_GAP_S: Final = (1.0, 5.0)
_MOST_SKIPPED: Final = 20


class Kind(StrEnum):
    """Everything that may happen at random."""

    KILL = "kill"
    POINT = "kill at a point"
    FREEZE = "freeze past the lease"
    CLOCK = "clock 10 minutes fast"
    LOSE = "rings lost"
    TWICE = "rings twice"
    BROKER_CUT = "RabbitMQ connections cut"
    BROKER_RESTART = "RabbitMQ restarted"
    BROKER_KILL = "RabbitMQ killed"
    BROKER_DISK = "RabbitMQ disk alarm"
    DATABASE_RESTART = "PostgreSQL restarted"
    DATABASE_KILL = "PostgreSQL killed"
    DATABASE_REFUSED = "PostgreSQL refused"
    DATABASE_SLOW = "PostgreSQL slow"
    S3_AWAY = "S3 away"
    S3_SLOW = "S3 slow"
    S3_FULL = "S3 full"


_WEIGHTS: Final = {Kind.KILL: 6, Kind.POINT: 10, Kind.FREEZE: 2, Kind.CLOCK: 1}
_ON_PROCESSES: Final = frozenset({Kind.KILL, Kind.POINT, Kind.FREEZE, Kind.CLOCK})
_MOMENT_S: Final = (0.1, 1.0)
_LASTS_S: Final = {
    **dict.fromkeys((Kind.KILL, Kind.BROKER_CUT, Kind.BROKER_RESTART, Kind.DATABASE_RESTART), _MOMENT_S),
    Kind.FREEZE: (_FROZEN_S, _FROZEN_S),
    Kind.POINT: (10.0, 10.0),
}


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault of the plan."""

    pause_s: float
    """Seconds of peace before it."""
    kind: Kind
    target: str = ""
    """The process, for what happens to one."""
    fault: Fault | None = None
    skip: int = 0
    seconds: float = 0.0
    """How long it lasts, or is waited for at most."""

    def __str__(self) -> str:
        where = [self.target] * bool(self.target) + ([f"{self.fault},skip={self.skip}"] if self.fault else [])
        return " ".join([self.kind, *where, f"{self.seconds:.1f} s"])


def plan_strikes(seed: int, count: int) -> list[Strike]:
    """The first `count` faults of a seed."""
    rng = random.Random(seed)
    kinds = list(Kind)
    weights = [_WEIGHTS.get(kind, 1) for kind in kinds]
    return [_strike(rng, rng.choices(kinds, weights)[0]) for _ in range(count)]


def _strike(rng: random.Random, kind: Kind) -> Strike:
    pause, seconds = rng.uniform(*_GAP_S), rng.uniform(*_LASTS_S.get(kind, (3.0, 8.0)))
    service, second, skip = rng.choice(_SERVICES), rng.random() < 0.5, rng.randint(0, _MOST_SKIPPED)
    fault = rng.choice(_AT[service])
    if kind not in _ON_PROCESSES:
        return Strike(round(pause, 2), kind, seconds=round(seconds, 2))
    target = f"{service}-2" if second else service
    at = kind is Kind.POINT
    return Strike(round(pause, 2), kind, target, fault if at else None, skip if at else 0, round(seconds, 2))
