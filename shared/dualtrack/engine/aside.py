"""Rows that the scheduler leaves alone for a while."""

from __future__ import annotations

import time
from typing import Final


class Aside:
    """Rows at which something failed that no other row had, and that waiting alone does not mend: left out for a while.

    So however many there are, they neither take the place of others nor fill the log at every tick.
    """

    PAUSE_S: Final = 30.0
    MOST: Final = 1000
    """Of more, the oldest have their turn again."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def add(self, row_id: str) -> None:
        """Leave it out from now on."""
        self._until.pop(row_id, None)
        self._until[row_id] = time.monotonic() + self.PAUSE_S
        while len(self._until) > self.MOST:
            del self._until[next(iter(self._until))]

    def ids(self) -> tuple[str, ...]:
        """Those that are left out now."""
        now = time.monotonic()
        self._until = {row_id: until for row_id, until in self._until.items() if until > now}
        return tuple(self._until)
