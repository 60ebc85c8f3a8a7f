"""Raising a job's limits, and letting it go on once there is room again."""

from __future__ import annotations

from dualtrack.db import children, events, jobs
from dualtrack.db.engine import Transaction
from dualtrack.domain.budgets import extended
from dualtrack.domain.conflicts import JobEnded, JobStopping
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import TERMINAL
from dualtrack.domain.limits import LimitsChange
from dualtrack.domain.waiting import Hold
from dualtrack.engine import budgets, flow
from dualtrack.engine.runtime import Runtime


def extend(tx: Transaction, runtime: Runtime, job: Job, change: LimitsChange, *, by: str) -> None:
    """Give a live job (its row locked) higher limits; one that waits for a budget goes on where they leave room.

    Raises:
        JobEnded, JobStopping: it has ended, or was told to.
        InvalidRequest: a limit would be lowered; `param` names it.
    """
    if job.status in TERMINAL:
        raise JobEnded(
            f"The job has ended ({job.status}), so its limits can't be raised: POST /v1/jobs/{job.id}/retry or /fork goes on in a new one."
        )
    if job.stopping is not None:
        raise JobStopping(f"The job was told to stop and will be {job.stopping}.")
    limits = extended(job.limits, change)
    if limits != job.limits:
        more_s = limits.wall_time_s - job.limits.wall_time_s
        jobs.set_limits(tx, job.id, limits.model_dump(mode="json"), more_s=more_s)
        data = {"limits": limits.model_dump(mode="json"), "by": by}
        events.append(tx, job.id, NewEvent(EventType.JOB_EXTENDED, data))
        tx.after_commit(lambda: _wake_family(runtime, job.root_id or job.id))
    if job.hold is Hold.BUDGET:
        look_again(tx, runtime, jobs.get(tx, job.id), by=by)


def _wake_family(runtime: Runtime, root_id: str) -> None:
    """In a transaction of its own: nobody waits for a job while he holds another. Without it they are looked at later."""
    with runtime.database.transaction() as tx:
        children.wake_short(tx, root_id)


def look_again(tx: Transaction, runtime: Runtime, job: Job, *, by: str, limits_held: bool = False) -> bool:
    """Let a job (its row locked) that is held for want of a budget go on where there is room now, else say what is short now.

    `limits_held`: this transaction holds the limits of the job's key. Only then may the job wait for the key's next day: others may read
    limits that are being raised just now, and leave it to the scheduler, which looks with them held.

    Whether it goes on (a child whose parent is held: with that).
    """
    if job.hold is not Hold.BUDGET or job.stopping is not None:
        return False
    short = budgets.shortage(tx, runtime.limits, job)
    if short is None:
        flow.release(tx, runtime, job, by=by)
        return True
    if job.waiting_since is not None:
        until = job.waiting_until
        if short.until is not None and until is not None:
            until = max(until, flow.last_look(short.until, runtime.limits))
        look_at = short.until if limits_held or short.until is None else jobs.SOON
        jobs.change(tx, job.id, {"message": budgets.advice(short, job), "not_before": look_at, "waiting_until": until})
    return False
