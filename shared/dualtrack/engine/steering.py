"""What somebody asks of a job on its way: pause and resume. Each under the job's row lock, in the caller's transaction."""

from __future__ import annotations

from typing import Final

from dualtrack.db.engine import Transaction
from dualtrack.domain.errors import Conflict
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.domain.waiting import Hold, WaitReason
from dualtrack.engine import flow
from dualtrack.engine.runtime import Runtime

_TO_DO: Final = {
    WaitReason.APPROVAL: "decide its open approvals",
    WaitReason.INPUT: "answer its open approvals",
    WaitReason.BUDGET: "extend the limit that it has reached",
}


def pause(tx: Transaction, runtime: Runtime, job: Job, *, by: str) -> None:
    """Ask a job (its row locked) to start nothing more and wait; what runs is finished first. Asking again changes nothing.

    Raises:
        Conflict: it has ended, was told to stop, or waits for its budget.
    """
    if job.stopping is None and job.hold is Hold.BUDGET:
        raise Conflict("The job has reached a limit and starts nothing more by itself: extend the limit to go on, or cancel the job.")
    flow.hold(tx, runtime, job, Hold.PAUSED, by=by)


def resume(tx: Transaction, runtime: Runtime, job: Job, *, by: str) -> None:
    """Let a paused job (its row locked) go on; one that is at work already is left alone.

    Raises:
        Conflict: it has ended, was told to stop, or waits for something other than this.
    """
    flow.require_live(job)
    if job.hold is Hold.PAUSED:
        flow.release(tx, runtime, job, by=by)
    elif job.hold is Hold.BUDGET or job.status is JobStatus.WAITING:
        reason = WaitReason.BUDGET if job.hold is Hold.BUDGET else WaitReason(str(job.reason))
        raise Conflict(f"The job is not paused, it waits ({reason}): {_TO_DO.get(reason, 'see its message')}, or cancel the job.")
