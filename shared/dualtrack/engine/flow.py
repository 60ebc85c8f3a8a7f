"""What happens next to a live job: which calls may start, what is waited for, when the planner is asked again.

One function decides it, from the rows alone, after anything changed: `go_on`. So a decision, an outcome, an approval, a resumption
or a child's end all lead on the same way, and doing it twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import func

from dualtrack.db import approvals, events, jobs, steps
from dualtrack.db.engine import Transaction
from dualtrack.db.prepared import NOW, Later
from dualtrack.domain.conflicts import JobEnded, JobStopping
from dualtrack.domain.errors import Conflict
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import TERMINAL, CallStatus, JobStatus, Phase
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.step import Call
from dualtrack.domain.tool import DELEGATE_TOOL
from dualtrack.domain.waiting import Held, Hold, WaitReason
from dualtrack.engine import budgets, delegation, doorbells, notices
from dualtrack.engine.ending import finish_stop
from dualtrack.engine.runtime import Runtime

_HELD_BY: Final = {Hold.PAUSED: WaitReason.PAUSED, Hold.BUDGET: WaitReason.BUDGET, Hold.PARENT: WaitReason.PAUSED}
_OF_PARENT: Final = "Its parent job is paused or waits for a budget; it goes on with it."
_MESSAGES: Final = {
    WaitReason.APPROVAL: "A call waits for a person: GET /v1/jobs/{id}/approvals, `dualtrack approvals list --job {id}`.",
    WaitReason.INPUT: "The agent asked a question: GET /v1/jobs/{id}/approvals, `dualtrack approvals list --job {id}`.",
    WaitReason.BUDGET: "A limit is reached: extend it, or cancel the job.",
    WaitReason.PAUSED: "Paused on request; resume it to go on.",
}


def go_on(tx: Transaction, runtime: Runtime, job: Job) -> None:
    """Take a live job on from where its rows stand. The caller holds its row lock, and `job` is as it stands now."""
    if job.stopping is not None:
        finish_stop(tx, job.id, job.stopping)
        return
    left = steps.open_calls(tx, job.id)
    wave = [call for call in left if call.wave == left[0].wave]
    if job.hold is not None:
        _hold_back(tx, runtime, job, wave)
    elif not wave:
        plan_next(tx, runtime, job)
    else:
        _start(tx, runtime, job, wave)


def plan_next(tx: Transaction, runtime: Runtime, job: Job) -> None:
    """The planner's turn: no call is open."""
    due = Later(runtime.limits.ring_s)
    _run(tx, job, {"phase": Phase.PLAN.value, "due_at": due, "rings": 0, "tries": 0, "failures": 0})
    doorbells.plan_after_commit(tx, runtime, job)


def wait(
    tx: Transaction,
    runtime: Runtime,
    job: Job,
    reason: WaitReason,
    *,
    phase: Phase,
    message: str | None = None,
    look: bool = False,
    until: datetime | None = None,
) -> None:
    """Let a job (its row locked, nobody at work on it) wait, then go on with `phase`; nothing changes where it waits for this already.

    `look`: the scheduler looks with its next tick whether what it waits for is there. `until`: when that will be by itself.
    """
    if job.status is JobStatus.WAITING and job.reason == reason:
        return
    text = message or _MESSAGES[reason].format(id=job.id)
    # Nobody has to do anything before the next day of a job's key, and no job is given up while somebody may still decide in time.
    ends = [] if until is None else [last_look(until, runtime.limits)]
    values: dict[str, Any] = {
        "status": JobStatus.WAITING.value,
        "phase": phase.value,
        "reason": reason.value,
        "message": text,
        "owner": None,
        "lease_until": None,
        "due_at": None,
        "not_before": NOW if look else None,
        "waiting_until": func.greatest(
            func.clock_timestamp() + timedelta(seconds=runtime.limits.waiting_s), approvals.last_expiry(job.id), *ends
        ),
    }
    if job.status is not JobStatus.WAITING:
        values["waiting_since"] = func.clock_timestamp()  # not the transaction's beginning: it may have waited for the row lock since
    until = jobs.change_returning_wait(tx, job.id, values)
    notices.record(tx, job.id, NewEvent(EventType.JOB_WAITING, {"reason": reason.value, "message": text, "until": until.isoformat()}))


def last_look(until: datetime, limits: PlatformLimits) -> datetime:
    """When a wait may end at the earliest, of a job that may go on by itself at `until`: from then on somebody may have to act."""
    return until + timedelta(seconds=limits.waiting_s)


def hold(tx: Transaction, runtime: Runtime, job: Job, why: Hold, *, by: str) -> bool:
    """Ask a job (its row locked) to stop at its next boundary; at once where nobody is at work on it. Whether this call asked first.

    Raises:
        JobEnded, JobStopping: it has ended or was told to.
    """
    require_live(job)
    if job.hold is not None and (job.hold, why) != (Hold.PARENT, Hold.PAUSED):
        return False  # but a pause of a child is its own, and outlasts that of its parent
    jobs.change(tx, job.id, {"hold": why.value})
    events.append(tx, job.id, NewEvent(EventType.JOB_PAUSING, {"hold": why.value, "by": by}))
    if job.status is JobStatus.WAITING or job.phase is Phase.EXECUTE or not jobs.claimed(tx, job.id):
        _hold_back(tx, runtime, jobs.get(tx, job.id), _wave(tx, job.id))
    return True


def release(tx: Transaction, runtime: Runtime, job: Job, *, by: str) -> None:
    """Lift a job's hold (its row locked) and take it on; a child whose parent is held goes on with that, and is held for it until then.

    The parent is only read: should it change right now, the scheduler finds that.

    Raises:
        JobEnded, JobStopping; Conflict: it is not held.
    """
    require_live(job)
    if job.hold is None:
        raise Conflict(f"The job is not held: it is {job.status}{f' ({job.reason})' if job.reason else ''}.")
    if job.hold is not Hold.PARENT and job.parent_id is not None and jobs.get(tx, job.parent_id).hold is not None:
        _hold_for_parent(tx, runtime, job, by)
        return
    jobs.change(tx, job.id, {"hold": None})
    if job.status is not JobStatus.WAITING:  # it had not come to its boundary
        events.append(tx, job.id, NewEvent(EventType.JOB_RESUMED, {"reason": job.hold.value, "by": by}))
    now = jobs.get(tx, job.id)
    if now.status is JobStatus.WAITING or now.phase is Phase.EXECUTE:
        go_on(tx, runtime, now)


def require_live(job: Job) -> None:
    """Raise `JobEnded` or `JobStopping` where a job has ended or was told to: nothing can be asked of it any more."""
    if job.status in TERMINAL:
        raise JobEnded(f"The job has already ended: {job.status}.")
    if job.stopping is not None:
        raise JobStopping(f"The job was told to stop and will be {job.stopping}.")


def _hold_for_parent(tx: Transaction, runtime: Runtime, job: Job, by: str) -> None:
    """What a job was held for is over, but its parent is held still."""
    jobs.change(tx, job.id, {"hold": Hold.PARENT.value})
    events.append(tx, job.id, NewEvent(EventType.JOB_PAUSING, {"hold": Hold.PARENT.value, "by": by}))
    if job.status is JobStatus.WAITING:
        jobs.change(tx, job.id, {"message": _OF_PARENT, "not_before": None})
        _hold_back(tx, runtime, jobs.get(tx, job.id), _wave(tx, job.id))


def _wave(tx: Transaction, job_id: str) -> list[Call]:
    left = steps.open_calls(tx, job_id)
    return [call for call in left if call.wave == left[0].wave]


def _hold_back(tx: Transaction, runtime: Runtime, job: Job, wave: Sequence[Call]) -> None:
    """Start nothing more; wait as soon as nothing runs."""
    steps.take_back(tx, [call.id for call in wave if call.status is CallStatus.PENDING and call.due_at is not None])
    if job.hold is None or steps.running_alive(tx, job.id):
        return
    held = job.hold is Hold.BUDGET and job.status is not JobStatus.WAITING
    short = budgets.shortage(tx, runtime.limits, job) if held else None
    wait(
        tx,
        runtime,
        job,
        _HELD_BY[job.hold],
        phase=Phase.EXECUTE if wave else Phase.PLAN,
        message=_OF_PARENT if job.hold is Hold.PARENT else budgets.advice(short, job) if short is not None else None,
        # Somebody may just be raising the key's limits, which are not held here, or have made room.
        look=held and (short is None or short.until is not None),
        until=short.until if short is not None else None,
    )


def _start(tx: Transaction, runtime: Runtime, job: Job, wave: Sequence[Call]) -> None:
    """Start what may start of the current wave; wait where all that is left of it waits for a person."""
    idle = [call for call in wave if call.status is CallStatus.PENDING and call.due_at is None]
    delegated = [call for call in idle if call.held is None and call.tool == DELEGATE_TOOL]
    if delegated:
        delegation.start(tx, runtime, jobs.get(tx, job.id), delegated)
        go_on(tx, runtime, jobs.get(tx, job.id))  # they are held now, or have an outcome already
        return
    ready = [call.id for call in idle if call.held is None]
    if ready:
        steps.make_due(tx, ready, runtime.limits.ring_s)
        doorbells.execute_after_commit(tx, runtime, ready, job)
    held = {call.held for call in idle}
    if ready or len(idle) < len(wave) or held == {Held.CHILD}:
        _run(tx, job, {"phase": Phase.EXECUTE.value, "due_at": None})
    elif held & {Held.APPROVAL, Held.UNKNOWN}:
        wait(tx, runtime, job, WaitReason.APPROVAL, phase=Phase.EXECUTE)
    else:
        wait(tx, runtime, job, WaitReason.INPUT, phase=Phase.EXECUTE)


def _run(tx: Transaction, job: Job, values: Mapping[str, Any]) -> None:
    """Write that the job runs; one that waited has its wall time moved on by the time it did."""
    if job.status is not JobStatus.WAITING:
        if job.phase.value != values["phase"] or job.phase is Phase.PLAN:
            jobs.change(tx, job.id, values)
        return
    jobs.end_wait(tx, job.id, JobStatus.QUEUED if job.started_at is None else JobStatus.RUNNING, values)
    events.append(tx, job.id, NewEvent(EventType.JOB_RESUMED, {"reason": job.reason}))
