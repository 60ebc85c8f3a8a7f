"""How many sandboxes to keep warm, from when they were claimed. No IO, no clock of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

BUCKET_S: Final = 5.0
"""Claims within as much time count as a burst."""
MEMORY_S: Final = 60.0
"""A burst is prepared for until this long after it."""
_COUNT: Final = int(MEMORY_S / BUCKET_S) + 1


def wanted(claims: Iterable[int], minimum: int, maximum: int) -> int:
    """Sandboxes to keep warm: as many as the biggest recent burst took, within the bounds.

    Args:
        claims: counts of neighbouring stretches of `BUCKET_S` seconds, oldest first; a burst may lie across two.
        minimum: kept even when nobody claims.
        maximum: never more; wins over `minimum`.
    """
    biggest = before = 0
    for count in claims:
        biggest = max(biggest, before + count)
        before = count
    return min(maximum, max(minimum, biggest))


class Demand:
    """The claims of one kind of sandbox over the last `MEMORY_S` seconds. Not thread-safe: its owner has a lock."""

    def __init__(self) -> None:
        self._buckets: deque[int] = deque([0] * _COUNT, maxlen=_COUNT)
        self._newest = 0

    def claimed(self, now: float) -> None:
        """Count a claim at `now` (monotonic seconds; never less than before)."""
        self._advance(now)
        self._buckets[-1] += 1

    def wanted(self, now: float, minimum: int, maximum: int) -> int:
        """As the function of that name, at `now`."""
        self._advance(now)
        return wanted(self._buckets, minimum, maximum)

    def _advance(self, now: float) -> None:
        index = int(now / BUCKET_S)
        for _ in range(min(index - self._newest, _COUNT)):
            self._buckets.append(0)
        self._newest = max(index, self._newest)
