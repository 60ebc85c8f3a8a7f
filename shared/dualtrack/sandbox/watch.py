"""What a command uses while it runs, by the kernel's counters and a look at the disk."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.disk import DiskWatch
from dualtrack.sandbox.port import Ended
from dualtrack.sandbox.rung import Counters

_FIRST_S: Final = 0.05
_SHORTEST_S: Final = 0.1
_LONGEST_S: Final = 1.0
_CORES: Final = os.cpu_count() or 1


class LimitWatch:
    """CPU time of all processes, and the disk. What a command uses in its first 50 ms is not counted: short ones then cost no reading."""

    def __init__(self, counters: Callable[[], Counters], disk: DiskWatch | None, limits: SandboxLimits) -> None:
        self._counters = counters
        self._disk = disk
        self._limits = limits
        self._before: float | None = None
        self._next = time.monotonic() + _FIRST_S

    def look(self) -> Ended | None:
        """The limit that is exceeded now; to be called some ten times a second."""
        now = time.monotonic()
        if now >= self._next:
            used = self._counters().cpu_s
            if used is None:
                self._next = float("inf")
            elif self._before is None:
                self._before = used
                self._next = now + _SHORTEST_S
            else:
                left = self._limits.cpu_time_s - (used - self._before)
                if left <= 0:
                    return Ended.CPU_TIME
                # As often as needed to notice it soon, were all cores busy from now on.
                self._next = now + min(_LONGEST_S, max(_SHORTEST_S, left / _CORES / 2))
        return self._disk.look() if self._disk is not None else None
