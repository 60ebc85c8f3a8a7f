"""The scheduler's part in schedules: acting on the times that have come."""

from __future__ import annotations

from collections.abc import Collection

from dualtrack.db import claims, schedules
from dualtrack.engine.hands import Errand, Hands, HandsFactory
from dualtrack.engine.runtime import Runtime
from dualtrack.engine.schedules import act


class Timetable:
    """Schedules whose job needs the object store or a name server are acted on by threads of its own, the others at once."""

    def __init__(self, runtime: Runtime, hands: HandsFactory = Hands) -> None:
        self._runtime = runtime
        self._hands = hands(self, runtime.limits.scheduler_threads, "schedule")

    def look(self) -> int:
        """One look; on how many schedules it acted or started to. Raises `DatabaseUnavailable`."""
        with self._runtime.database.transaction() as tx:
            due = schedules.due(tx, claims.BATCH, outside=False)
        return sum(act(self._runtime, schedule_id) for schedule_id in due) + self._hands.start_due()

    def close(self) -> None:
        """Act on no more; returns when what is under way has ended."""
        self._hands.close()

    def due(self, most: int, busy: Collection[str]) -> int:
        """For its threads."""
        with self._runtime.database.transaction() as tx:
            return len(schedules.due(tx, most, outside=True, busy=busy))

    def take(self, busy: Collection[str]) -> Errand | None:
        """For its threads."""
        with self._runtime.database.transaction() as tx:
            due = schedules.due(tx, 1, outside=True, busy=busy)
        return Errand(due[0], lambda: act(self._runtime, due[0])) if due else None
