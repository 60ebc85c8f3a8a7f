"""Jobs by the clock. A time of a schedule gives its job exactly once: job, record and the next time are written in one transaction."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from dualtrack.db import claims, clock, jobs, schedules
from dualtrack.db.engine import Transaction
from dualtrack.db.idempotency import RequestKey, once
from dualtrack.domain import cron
from dualtrack.domain.errors import DatabaseUnavailable, DualtrackError
from dualtrack.domain.job import Job, JobSpec
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.domain.schedule import CatchUp, Overlap, RunOutcome, Schedule, ScheduleRun
from dualtrack.engine import doorbells, intake
from dualtrack.engine.ending import request_stop
from dualtrack.engine.intake import Prepared
from dualtrack.engine.runtime import Runtime
from dualtrack.faults import Fault, point

_LOG: Final = logging.getLogger(__name__)
_BY: Final = "schedule"
_BUSY: Final = "A job of this schedule was still live (overlap: skip)."
_WAITS: Final = "Waits for the jobs before it to end (overlap: queue)."
_FULL: Final = "As many times as may (limits.schedule_queue) were waiting already."
_CHANGED: Final = "The schedule was changed when this time had come: its job is about to start."
_PAUSED: Final = "The schedule was paused when this time had come, before its job was started."
_LATER: Final = "A later time came, which ends what was before it (overlap: cancel)."


def act(runtime: Runtime, schedule_id: str) -> bool:
    """Act on a time that has come, and on a queued one whose turn it is. Whether it did.

    What can't be done now is left alone for a while.

    Raises:
        DatabaseUnavailable: nothing is known of it.
    """
    try:
        acted = _tick(runtime, schedule_id)
        acted = _start_queued(runtime, schedule_id) or acted
    except DatabaseUnavailable:
        raise
    except Exception as error:  # noqa: BLE001 - one schedule must not keep the others waiting
        expected = isinstance(error, DualtrackError)
        _LOG.log(logging.WARNING if expected else logging.ERROR, "schedule %s is left alone: %s", schedule_id, error, exc_info=not expected)
        with runtime.database.transaction() as tx:
            schedules.put_off(tx, schedule_id, runtime.limits)
        return False
    if not acted:
        with runtime.database.transaction() as tx:
            schedules.put_back(tx, schedule_id)
    return acted


def run_now(runtime: Runtime, schedule: Schedule, request: RequestKey | None) -> tuple[ScheduleRun, bool]:
    """Start a schedule's job now, whatever its overlap policy says; the run, and whether it is new.

    Raises:
        As `intake.prepare`; IdempotencyMismatch.
    """
    prepared = intake.prepare(runtime, tenant_id=schedule.tenant_id, spec=_spec(runtime, schedule))
    with runtime.database.transaction() as tx:

        def start() -> str:
            tick = clock.now(tx)
            job = _create(tx, runtime, schedule, prepared, tick)
            schedules.record(tx, schedule.id, tick, RunOutcome.STARTED, job_id=job.id, manual=True)
            return job.id

        job_id, new = once(tx, request, start)
        return schedules.run_of_job(tx, job_id, schedule.id), new


def next_time(schedule: Schedule, after: datetime) -> datetime | None:
    """When it is due next."""
    return None if schedule.paused else cron.next_after(schedule.cron, schedule.timezone, after)


def moved(tx: Transaction, runtime: Runtime, schedule: Schedule, *, expression: str, timezone: str, paused: bool) -> dict[str, Any]:
    """The columns that are other ones when a schedule (its row locked) gets these times; none where it has them.

    A time of the old ones that has come, and that no scheduler has acted on yet, is recorded: it starts as soon as may be, and is skipped
    where it would be anyway or the schedule is paused.
    """
    if (expression, timezone, paused) == (schedule.cron, schedule.timezone, schedule.paused):
        return {}
    now = clock.now(tx)
    due = _due(runtime, schedule, now)
    if due is not None and not schedules.recorded(tx, schedule.id, due.tick):
        if paused or due.skip:
            outcome, message = RunOutcome.SKIPPED, _PAUSED if paused else None
        else:
            outcome, message = _decide(tx, runtime, schedule)
            if outcome is RunOutcome.STARTED:  # by a scheduler: what has to be done for it can't be done in here
                outcome, message = RunOutcome.QUEUED, _CHANGED
        schedules.record(tx, schedule.id, due.tick, outcome, missed=due.missed, message=due.told(message))
    return {"next_at": None if paused else cron.next_after(expression, timezone, now)}


@dataclass(frozen=True, slots=True)
class _Due:
    """A time that has come."""

    tick: datetime
    missed: int
    """Before it."""
    late: bool
    """Missed itself."""
    skip: bool
    """By `catch_up`."""

    def told(self, message: str | None) -> str | None:
        """What is said of it."""
        gone = f"{self.missed + self.late} missed while no scheduler ran." if self.missed or self.late else None
        return " ".join(text for text in (gone, message) if text) or None


def _due(runtime: Runtime, schedule: Schedule, now: datetime) -> _Due | None:
    """The last of its times that have come, None: none has."""
    if schedule.next_at is None or schedule.next_at > now:
        return None
    tick, missed = cron.latest(schedule.cron, schedule.timezone, schedule.next_at, now)
    late = now - tick > timedelta(seconds=runtime.limits.schedule_grace_s)
    return _Due(tick, missed, late, skip=late and schedule.catch_up is CatchUp.SKIP)


def _tick(runtime: Runtime, schedule_id: str) -> bool:
    with runtime.database.transaction() as tx:
        seen, now = schedules.look(tx, schedule_id), clock.now(tx)
    due = None if seen is None else _due(runtime, seen, now)
    if seen is None or due is None:
        return False
    if not due.skip and seen.overlap is Overlap.CANCEL and not _cancel_earlier(runtime, seen.id, due.tick):
        return False
    prepared, failure = (None, None) if due.skip else _prepare(runtime, seen)
    with runtime.database.transaction() as tx:
        schedule = schedules.claim(tx, schedule_id)
        if schedule is None or schedule.next_at != seen.next_at or _changed(schedule, seen):
            return False  # another scheduler was faster, or somebody changed it
        if not schedules.recorded(tx, schedule.id, due.tick):  # or it was given before: an earlier release could make one up
            outcome, job_id, message = RunOutcome.SKIPPED if due.skip else RunOutcome.FAILED, None, failure
            if prepared is not None:
                outcome, message = _decide(tx, runtime, schedule)
            if outcome is RunOutcome.STARTED and prepared is not None:
                job_id = _create(tx, runtime, schedule, prepared, due.tick).id
                schedules.give_up_queued(tx, schedule.id, _LATER)  # there are none but where the overlap policy is to cancel
            schedules.record(tx, schedule.id, due.tick, outcome, job_id=job_id, missed=due.missed, message=due.told(message))
        schedules.change(tx, schedule.id, {"next_at": next_time(schedule, due.tick)})
        schedules.forget(tx, schedule.id, runtime.limits.schedule_runs)
        point(Fault.SCHEDULE_TICK, schedule.id)
    return True


def _decide(tx: Transaction, runtime: Runtime, schedule: Schedule) -> tuple[RunOutcome, str | None]:
    """What becomes of a time whose job could be created."""
    waiting = schedules.queued(tx, schedule.id)
    if schedule.overlap is Overlap.CANCEL or not (waiting or schedules.live_jobs(tx, schedule.id, clock.now(tx), most=1)):
        return RunOutcome.STARTED, None
    if schedule.overlap is Overlap.SKIP:
        return RunOutcome.SKIPPED, _BUSY
    return (RunOutcome.SKIPPED, _FULL) if waiting >= runtime.limits.schedule_queue else (RunOutcome.QUEUED, _WAITS)


def _start_queued(runtime: Runtime, schedule_id: str) -> bool:
    with runtime.database.transaction() as tx:
        seen = schedules.look(tx, schedule_id)
        if seen is None or seen.paused or schedules.next_queued(tx, schedule_id) is None:
            return False
        if schedules.live_jobs(tx, schedule_id, clock.now(tx), most=1):
            return False
    prepared, failure = _prepare(runtime, seen)
    with runtime.database.transaction() as tx:
        schedule = schedules.claim(tx, schedule_id)
        tick = schedules.next_queued(tx, schedule_id)
        if schedule is None or tick is None or _changed(schedule, seen) or schedules.live_jobs(tx, schedule_id, clock.now(tx), most=1):
            return False
        if prepared is None:
            schedules.settle(tx, schedule_id, tick, RunOutcome.FAILED, job_id=None, message=failure)
        else:
            job = _create(tx, runtime, schedule, prepared, tick)
            schedules.settle(tx, schedule_id, tick, RunOutcome.STARTED, job_id=job.id, message=None)
        schedules.change(tx, schedule_id, {})
    return True


def _prepare(runtime: Runtime, schedule: Schedule) -> tuple[Prepared | None, str | None]:
    """The schedule's job, or why there can be none. What may pass by itself is raised: it is tried again after a pause."""
    try:
        return intake.prepare(runtime, tenant_id=schedule.tenant_id, spec=_spec(runtime, schedule)), None
    except DualtrackError as error:
        if error.retryable:
            raise
        return None, error.message


def _changed(now: Schedule, seen: Schedule) -> bool:
    return (now.spec, now.secret) != (seen.spec, seen.secret)


def _spec(runtime: Runtime, schedule: Schedule) -> JobSpec:
    """What it submits, with its webhook's secret. Raises `SecretUnreadable`."""
    spec = schedule.spec
    if spec.webhook is None or schedule.secret is None:
        return spec
    return spec.model_copy(update={"webhook": spec.webhook.model_copy(update={"secret": runtime.sealer.open(schedule.secret)})})


def _create(tx: Transaction, runtime: Runtime, schedule: Schedule, prepared: Prepared, tick: datetime) -> Job:
    source = {"schedule": {"id": schedule.id, "at": tick.isoformat()}}
    job = intake.create(tx, runtime, prepared, key_id=schedule.key_id, source=source, lineage={"schedule_id": schedule.id})
    tx.after_commit(lambda: point(Fault.SCHEDULE_TICKED, job.id))
    doorbells.plan_after_commit(tx, runtime, job)
    return job


def _cancel_earlier(runtime: Runtime, schedule_id: str, tick: datetime) -> bool:
    """Tell the live jobs of earlier times to stop, each in a transaction of its own; False where one could not be told now.

    Only those before `tick`: the job of this same time may just have been created by another scheduler.
    """
    with runtime.database.transaction() as tx:
        earlier = schedules.live_jobs(tx, schedule_id, tick, most=claims.BATCH)
    told = len(earlier) < claims.BATCH
    for job_id in earlier:
        with runtime.database.transaction() as tx:
            job = jobs.lock(tx, job_id)
            if job is None:
                told = False
            elif job.finished_at is None:
                request_stop(tx, job, JobStatus.CANCELLED, by=_BY)
    return told
