"""Jobs by the clock. A time of a schedule gives its job exactly once: job, record and the next time are written in one transaction."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Final

from dualtrack.db import claims, clock, jobs, schedules
from dualtrack.db.engine import Transaction
from dualtrack.db.idempotency import RequestKey, once
from dualtrack.domain import cron
from dualtrack.domain.errors import DualtrackError
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


def run_due(runtime: Runtime) -> int:
    """Act on the schedules whose time has come, and on queued times whose turn has come; on how many. For the scheduler."""
    with runtime.database.transaction() as tx:
        due = schedules.due(tx, claims.BATCH)
        ready = schedules.ready(tx, claims.BATCH)
    acted = 0
    for schedule_id, act in [*((found, _tick) for found in due), *((found, _start_queued) for found in ready)]:
        try:
            acted += act(runtime, schedule_id)
        except Exception as error:  # noqa: BLE001 - one schedule must not keep the others waiting
            _LOG.log(
                logging.WARNING if isinstance(error, DualtrackError) else logging.ERROR,
                "schedule %s is left for the next tick: %s",
                schedule_id,
                error,
                exc_info=not isinstance(error, DualtrackError),
            )
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


def _tick(runtime: Runtime, schedule_id: str) -> bool:
    with runtime.database.transaction() as tx:
        seen, now = schedules.look(tx, schedule_id), clock.now(tx)
    if seen is None or seen.next_at is None or seen.next_at > now:
        return False
    tick, missed = cron.latest(seen.cron, seen.timezone, seen.next_at, now)
    too_late = now - tick > timedelta(seconds=runtime.limits.schedule_grace_s)
    gone = f"{missed + too_late} missed while no scheduler ran." if missed or too_late else None
    skip = too_late and seen.catch_up is CatchUp.SKIP
    if not skip and seen.overlap is Overlap.CANCEL and not _cancel_earlier(runtime, seen.id, tick):
        return False
    prepared, failure = (None, gone) if skip else _prepare(runtime, seen)
    with runtime.database.transaction() as tx:
        schedule = schedules.claim(tx, schedule_id)
        if schedule is None or schedule.next_at != seen.next_at or _changed(schedule, seen):
            return False  # another scheduler was faster, or somebody changed it
        outcome, job_id, message = RunOutcome.SKIPPED if skip else RunOutcome.FAILED, None, failure
        if prepared is not None:
            outcome, message = _decide(tx, runtime, schedule)
            message = " ".join(text for text in (gone, message) if text) or None
            job_id = _create(tx, runtime, schedule, prepared, tick).id if outcome is RunOutcome.STARTED else None
        schedules.record(tx, schedule.id, tick, outcome, job_id=job_id, missed=missed, message=message)
        schedules.change(tx, schedule.id, {"next_at": next_time(schedule, tick)})
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
    if seen is None or seen.paused:
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
    return True


def _prepare(runtime: Runtime, schedule: Schedule) -> tuple[Prepared | None, str | None]:
    """The schedule's job, or why there can be none. What may pass by itself is raised: the next tick tries again."""
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
