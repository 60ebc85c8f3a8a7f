"""What a session uses, while a command runs in it and between two commands, by the kernel's counters and a look at the disk."""

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
_AT_WORK_S: Final = 0.001
"""Processor time in which next to nothing can be written."""


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


class BackgroundWatch:
    """The same limits between two commands, for what goes on in the background. Where nothing does, it costs reading a counter."""

    def __init__(self, counters: Callable[[], Counters], disk: DiskWatch | None, limits: SandboxLimits) -> None:
        self._counters = counters
        self._disk = disk
        self._limits = limits
        self._first: float | None = None
        self._looked: float | None = None

    def look(self) -> Ended | None:
        """The limit that is exceeded now; to be called about once a second. CPU time is counted from the first call on."""
        counters = self._counters()
        if counters.disk_exceeded:
            return Ended.DISK
        used = counters.cpu_s
        if used is not None:
            self._first = used if self._first is None else self._first
            if used - self._first >= self._limits.cpu_time_s:
                return Ended.CPU_TIME
            if self._looked is not None and used - self._looked < _AT_WORK_S:
                return None
        if self._disk is None or not self._disk.due:
            return None
        self._looked = used
        return self._disk.look()
