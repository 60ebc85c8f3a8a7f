"""The only clock: rings what is due, orphaned or late. Several may run at once; they take different rows.

What a tick does itself needs the database and the broker only. What waits for others (the object store, name servers, receivers of
webhooks) is done by threads (`engine.hands`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from dualtrack.db import approvals, claims, jobs
from dualtrack.db import budgets as budget_rows
from dualtrack.db.engine import Transaction
from dualtrack.domain.errors import DatabaseUnavailable, DualtrackError, InfrastructureError, RecordUnreadable
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.domain.reasons import Reason
from dualtrack.domain.waiting import Hold
from dualtrack.engine import extension, flow
from dualtrack.engine.approvals import expire
from dualtrack.engine.aside import Aside
from dualtrack.engine.children import Families
from dualtrack.engine.deliveries import Deliverer
from dualtrack.engine.ending import end_unreadable, finish_stop, request_stop
from dualtrack.engine.hands import Hands, HandsFactory
from dualtrack.engine.one_try import OneTry
from dualtrack.engine.runtime import Runtime
from dualtrack.engine.timetable import Timetable
from dualtrack.faults import Fault, point
from dualtrack.queues.port import Ring, Task

_LOG: Final = logging.getLogger(__name__)
_SILENT_S: Final = 30.0
_TOO_LONG: Final = (Reason.WAITED_TOO_LONG, "Nobody did what the job waited for in time (DUALTRACK_LIMITS__WAITING_S).")


class Scheduler:
    """Looks at the database every tick."""

    def __init__(self, runtime: Runtime, tick_s: float, hands: HandsFactory = Hands) -> None:
        self._doorbell = OneTry(runtime.doorbell)
        self._runtime = runtime = replace(runtime, doorbell=self._doorbell)
        self._tick_s = tick_s
        self._families = Families(runtime, hands)
        self._timetable = Timetable(runtime, hands)
        self._aside = Aside()
        self._last = time.monotonic()
        self.deliverer: Final = Deliverer(runtime)

    def run(self, stop: threading.Event) -> None:
        """Tick until told to stop; a failing tick is logged and the next one tries again."""
        try:
            while not stop.wait(self._tick_s):
                try:
                    self.tick()
                except DualtrackError as error:
                    _LOG.warning("tick failed, trying again: %s", error)
                except Exception:  # noqa: BLE001 - the clock must not stop
                    _LOG.exception("tick failed, trying again")
        finally:
            self.close()

    def close(self) -> None:
        """End its threads; returns when what is under way has ended."""
        for threads in (self.deliverer, self._families, self._timetable):
            threads.close()

    def tick(self) -> int:
        """One look: due rows, deadlines, unfinished stops. How many rows were acted on.

        Raises the first failure, after all parts had their turn: nothing that is wrong with one job or the broker stops the others.
        """
        self._doorbell.again()
        acted, failures = 0, []
        for part in (
            self._rings,
            self._deadlines,
            self._approvals,
            self._budgets,
            self._waits,  # after what may let a job go on
            self._stops,
            self._kin,
            self._timetable.look,
            self.deliverer.start_due,
        ):
            try:
                acted += part()
            except Exception as error:  # noqa: BLE001 - raised below
                failures.append(error)
        if failures:
            raise failures[0]
        self._last = time.monotonic()
        return acted

    def check(self) -> None:
        """Raise `InfrastructureError` when no tick has succeeded for long."""
        silent = time.monotonic() - self._last
        if silent > max(_SILENT_S, 10 * self._tick_s):
            raise InfrastructureError(f"no tick has succeeded for {silent:.0f} s; the log says why")

    def _deadlines(self) -> int:
        with self._runtime.database.transaction() as tx:
            late = jobs.past_deadline(tx, claims.BATCH, self._aside.ids())
        return sum(self._each(job_id, self._out_of_time) for job_id in late)

    def _out_of_time(self, tx: Transaction, job: Job) -> bool:
        if job.limits.on_limit == "fail":
            return request_stop(tx, job, JobStatus.EXPIRED, by="scheduler")
        return flow.hold(tx, self._runtime, job, Hold.BUDGET, by="scheduler")

    def _budgets(self) -> int:
        """Jobs whose wait for a budget may be over: a new day has begun, their key's limit was raised, or they have just begun to wait."""
        with self._runtime.database.transaction() as tx:
            over = budget_rows.over(tx, claims.BATCH, self._aside.ids())
        return sum(self._each(found.job_id, self._look_again, key_id=found.key_id) for found in over)

    def _look_again(self, tx: Transaction, job: Job) -> bool:
        return extension.look_again(tx, self._runtime, job, by="scheduler", limits_held=True)

    def _approvals(self) -> int:
        """Jobs with requests to people that nobody decided in time."""
        with self._runtime.database.transaction() as tx:
            late = approvals.jobs_with_lapsed(tx, claims.BATCH, self._aside.ids())
        return sum(self._each(job_id, lambda tx, job: expire(tx, self._runtime, job)) for job_id in late)

    def _waits(self) -> int:
        """Jobs that waited for too long."""
        with self._runtime.database.transaction() as tx:
            late = jobs.past_wait(tx, claims.BATCH, self._aside.ids())
        return sum(self._each(job_id, _expire_wait) for job_id in late)

    def _stops(self) -> int:
        """Jobs told to stop whose last worker died before it could end them."""
        with self._runtime.database.transaction() as tx:
            stopped = jobs.stopped(tx, claims.BATCH, self._aside.ids())
        return sum(
            self._each(job_id, lambda tx, job: job.stopping is not None and finish_stop(tx, job.id, job.stopping)) for job_id in stopped
        )

    def _kin(self) -> int:
        """Children and parents that don't know of each other's ends, holds and stops; after the other parts, which may have made some."""
        return self._families.look(self._each, self._aside.ids())

    def _each(self, job_id: str, act: Callable[[Transaction, Job], bool], *, key_id: str | None = None) -> bool:
        """Act on a live job in a transaction of its own; not at all while somebody holds its row: the next tick comes soon.

        `key_id`: the key whose limits are held meanwhile.
        """
        try:
            try:
                with self._runtime.database.transaction() as tx:
                    if key_id is not None:
                        budget_rows.hold_limits(tx, key_id)
                    job = jobs.lock(tx, job_id)
                    return job is not None and job.finished_at is None and act(tx, job)
            except RecordUnreadable as error:
                _LOG.error("%s", error, extra={"job_id": job_id})
                with self._runtime.database.transaction() as tx:
                    return end_unreadable(tx, job_id, error)
        except DatabaseUnavailable as error:
            _LOG.warning("job left for the next tick: %s", error, extra={"job_id": job_id})
        except Exception:  # noqa: BLE001 - one bad job must not keep the others waiting
            _LOG.exception("job left alone for %s s", Aside.PAUSE_S, extra={"job_id": job_id})
            self._aside.add(job_id)
        return False

    def _rings(self) -> int:
        """Ring due rows. The push-back is committed first: a ring lost here comes again, and never twice at once from two schedulers.

        Orphans of dead workers are always rung. Rows that merely wait get no more rings than the queue is short of a batch: while it is
        longer than that, workers are busy and another ring would tell them nothing.
        """
        limits, doorbell = self._runtime.limits, self._runtime.doorbell
        room = {"jobs": claims.BATCH - doorbell.backlog(Task.PLAN), "calls": claims.BATCH - doorbell.backlog(Task.EXECUTE)}
        rung = 0
        tasks: tuple[tuple[claims.Kind, Task], ...] = (("jobs", Task.PLAN), ("calls", Task.EXECUTE))
        for kind, task in tasks:
            with self._runtime.database.transaction() as tx:
                rows = claims.free_orphans(tx, kind)
                if room[kind] > 0:
                    rows += claims.ring_due(tx, kind, limits, room[kind])
                if rows:
                    point(Fault.SCHEDULER_PUSH_BACK)
            if rows:
                point(Fault.SCHEDULER_PUSHED_BACK)
            doorbell.ring([Ring(task, row.id, row.priority, row.traceparent) for row in {row.id: row for row in rows}.values()])
            if rows:
                point(Fault.SCHEDULER_RUNG)
            rung += len(rows)
        return rung


def _expire_wait(tx: Transaction, job: Job) -> bool:
    if approvals.pending(tx, job.id):  # they come first, and the job goes on then
        return False
    return job.status is JobStatus.WAITING and request_stop(tx, job, JobStatus.EXPIRED, by="scheduler", why=_TOO_LONG)
