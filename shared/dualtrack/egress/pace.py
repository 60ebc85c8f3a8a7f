"""How much of the processor one session's proxy may take: its threads share an interpreter with everything else that the executor does."""

from __future__ import annotations

import threading
import time
from typing import Final

SHARE: Final = 0.5
"""Of one processor, in the long run."""
BURST_S: Final = 2.0
"""Processor time that may be taken at once: some 150 MB that are looked into, or thousands of requests."""
_LONGEST_S: Final = 0.25
"""A pause, after which is looked again."""


class Pace:
    """Slows the threads of one session down to its share, by the processor time that they took. Thread-safe."""

    def __init__(self, share: float = SHARE, burst_s: float = BURST_S) -> None:
        self._share = share
        self._burst_s = burst_s
        self._left_s = burst_s
        self._at = time.monotonic()
        self._lock = threading.Lock()
        self._thread = threading.local()

    def keep(self) -> None:
        """Count what this thread took since its last call, or its start; wait where the session has had more than its share."""
        taken = time.thread_time()
        spent, self._thread.taken = taken - getattr(self._thread, "taken", 0.0), taken
        with self._lock:
            now = time.monotonic()
            self._left_s = min(self._burst_s, self._left_s + (now - self._at) * self._share) - spent
            self._at = now
            behind_s = -self._left_s / self._share
        if behind_s > 0:
            time.sleep(min(behind_s, _LONGEST_S))
