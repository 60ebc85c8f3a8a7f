"""The only clock: rings what is due, orphaned or late. Several may run at once; they take different rows."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from dualtrack.db import claims, jobs
from dualtrack.domain.errors import BrokerUnavailable, Conflict, DualtrackError, InfrastructureError
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.engine.ending import finish_stop, request_stop
from dualtrack.engine.runtime import Runtime

_LOG: Final = logging.getLogger(__name__)
_SILENT_S: Final = 30.0


class Scheduler:
    """Looks at the database every tick."""

    def __init__(self, runtime: Runtime, tick_s: float) -> None:
        self._runtime = runtime
        self._tick_s = tick_s
        self._last = time.monotonic()

    def run(self, stop: threading.Event) -> None:
        """Tick until told to stop; a failing tick is logged and the next one tries again."""
        while not stop.wait(self._tick_s):
            try:
                self.tick()
            except DualtrackError as error:
                _LOG.warning("tick failed, trying again: %s", error)
            except Exception:  # noqa: BLE001 - the clock must not stop
                _LOG.exception("tick failed, trying again")

    def tick(self) -> int:
        """One look: deadlines, unfinished stops, due rows. How many rows were acted on."""
        acted = self._deadlines() + self._stops() + self._rings()
        self._last = time.monotonic()
        return acted

    def check(self) -> None:
        """Raise `InfrastructureError` when no tick has succeeded for long."""
        silent = time.monotonic() - self._last
        if silent > max(_SILENT_S, 10 * self._tick_s):
            raise InfrastructureError(f"no tick has succeeded for {silent:.0f} s; the log says why")

    def _deadlines(self) -> int:
        with self._runtime.database.transaction() as tx:
            late = jobs.past_deadline(tx, claims.BATCH)
        for job_id in late:
            with self._runtime.database.transaction() as tx:
                try:
                    request_stop(tx, jobs.get(tx, job_id, lock=True), JobStatus.EXPIRED, by="scheduler")
                except Conflict:  # it ended between the two looks
                    continue
        return len(late)

    def _stops(self) -> int:
        """Jobs told to stop whose last worker died before it could end them."""
        with self._runtime.database.transaction() as tx:
            waiting = jobs.stopping(tx, claims.BATCH)
        ended = 0
        for job_id in waiting:
            with self._runtime.database.transaction() as tx:
                job = jobs.get(tx, job_id, lock=True)
                if job.stopping is not None and job.finished_at is None:
                    ended += finish_stop(tx, job_id, job.stopping)
        return ended

    def _rings(self) -> int:
        """Ring due rows. The push-back is committed first: a ring lost here comes again, and never twice at once from two schedulers."""
        with self._runtime.database.transaction() as tx:
            plans = claims.ring_due(tx, "jobs", self._runtime.limits)
            calls = claims.ring_due(tx, "calls", self._runtime.limits)
        try:
            for row in plans:
                self._runtime.doorbell.plan(row.id, priority=row.priority, traceparent=row.traceparent)
            for row in calls:
                self._runtime.doorbell.execute(row.id, priority=row.priority, traceparent=row.traceparent)
        except BrokerUnavailable as error:
            _LOG.warning("%d rings wait for the broker: %s", len(plans) + len(calls), error)
        return len(plans) + len(calls)
