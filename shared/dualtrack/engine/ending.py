"""How a job ends, and how it is told to stop: the same for planner, executor, scheduler and router."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dualtrack.db import approvals, events, jobs, presence, steps
from dualtrack.db.engine import Transaction
from dualtrack.domain.conflicts import JobEnded
from dualtrack.domain.doubt import DOUBTED, TOLD, may_have_happened
from dualtrack.domain.errors import DualtrackError
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import TERMINAL, CallStatus, JobStatus
from dualtrack.domain.reasons import Reason
from dualtrack.domain.step import Call
from dualtrack.domain.usage import Usage
from dualtrack.domain.waiting import ApprovalStatus
from dualtrack.engine import notices
from dualtrack.telemetry import genai, tracing

_PLATFORM: Final = "platform"
"""Who withdrew an approval."""
_END_EVENT: Final = {
    JobStatus.SUCCEEDED: EventType.JOB_SUCCEEDED,
    JobStatus.FAILED: EventType.JOB_FAILED,
    JobStatus.CANCELLED: EventType.JOB_CANCELLED,
    JobStatus.EXPIRED: EventType.JOB_EXPIRED,
}
_STOPPED: Final = {
    JobStatus.CANCELLED: (Reason.CANCELLED, "Cancelled on request."),
    JobStatus.EXPIRED: (Reason.LIMIT_WALL_TIME, "The job's wall-time limit was reached (limits.wall_time_s)."),
}


def usage_data(usage: Usage) -> dict[str, object]:
    """Usage as events and the API show it; money as a string, so that nothing is rounded."""
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        "total_tokens": usage.total_tokens,
        "cost_usd": format(usage.cost_usd.normalize(), "f"),
    }


def end_job(
    tx: Transaction,
    job_id: str,
    status: JobStatus,
    *,
    reason: Reason | str | None = None,
    message: str | None = None,
    answer: str | None = None,
) -> None:
    """End a job whose row lock the caller holds: final status, last event, open calls cancelled; once committed, its span."""
    left = steps.open_calls(tx, job_id)
    if any(call.status is CallStatus.RUNNING for call in left):
        presence.call(tx, steps.owners(tx, job_id))
    dropped = _drop(tx, job_id, left)
    code = None if reason is None else str(reason)
    jobs.end(tx, job_id, status, reason=code, message=message, answer=answer)
    job = jobs.get(tx, job_id)
    notices.record(tx, job_id, *dropped, end_event(status, job.step, job.usage, reason=code, message=message, answer=answer))
    tx.after_commit(lambda: export_span(job))


def end_event(status: JobStatus, step: int, usage: Usage, **more: str | None) -> NewEvent:
    """The last event of a job that has ended after so many steps; `more`: `reason`, `message` and `answer`, where it has any."""
    data: dict[str, object] = {"steps": step, "usage": usage_data(usage)}
    return NewEvent(_END_EVENT[status], data | {key: value for key, value in more.items() if value is not None})


def export_span(job: Job) -> None:
    """Export the span of a job that has ended."""
    if job.finished_at is None or not job.traceparent:
        return
    tracing.export_reserved(
        job.traceparent,
        parent=job.request_traceparent,
        name=f"{genai.INVOKE_AGENT} {job.spec.agent.name}",
        start=job.created_at,
        end=job.finished_at,
        attributes={
            genai.OPERATION: genai.INVOKE_AGENT,
            genai.AGENT_NAME: job.spec.agent.name,
            genai.REQUEST_MODEL: job.spec.agent.model,
            genai.CONVERSATION_ID: job.id,
            genai.JOB_ID: job.id,
            genai.JOB_STATUS: job.status.value,
            genai.TENANT_ID: job.tenant_id,
            genai.INPUT_TOKENS: job.usage.input_tokens,
            genai.OUTPUT_TOKENS: job.usage.output_tokens,
            genai.COST_USD: float(job.usage.cost_usd),
            "dualtrack.steps": job.step,
        }
        | ({genai.ERROR_TYPE: job.reason} if job.reason else {}),
        error=job.message if job.status is not JobStatus.SUCCEEDED else None,
    )


def request_stop(tx: Transaction, job: Job, target: JobStatus, *, by: str, why: tuple[Reason, str] | None = None) -> bool:
    """Tell a job (its row locked) to stop; it ends at once where nobody is working on it. Whether this call told it so first.

    Raises:
        JobEnded: the job has ended already, other than by this same stop.
    """
    if job.status in TERMINAL:
        if job.status is target:
            return False
        raise JobEnded(f"The job has already ended: {job.status}.")
    if job.stopping is not None:
        return False
    jobs.change(tx, job.id, {"stopping": target.value})
    events.append(tx, job.id, NewEvent(EventType.JOB_STOPPING, {"target": target.value, "by": by}))
    finish_stop(tx, job.id, target, why=why)
    return True


def finish_stop(tx: Transaction, job_id: str, target: JobStatus, *, why: tuple[Reason, str] | None = None) -> bool:
    """End a job that was told to stop (its row locked), unless a living executor is still on it; that one will. Whether it ended.

    A planner waiting for its model is not waited for: its decision will find the job ended and be dropped. What the provider charges
    for it is then not known here.
    """
    if steps.running_alive(tx, job_id):
        idle = [call for call in steps.open_calls(tx, job_id) if call.status is CallStatus.PENDING]
        events.append(tx, job_id, *_drop(tx, job_id, idle))
        presence.call(tx, steps.owners(tx, job_id))
        return False
    reason, message = why or _STOPPED[target]
    end_job(tx, job_id, target, reason=reason, message=message)
    return True


def end_unreadable(tx: Transaction, job_id: str, error: DualtrackError) -> bool:
    """End a live job that this release can't read or take on, so that it neither hangs nor is tried for ever. Whether this call did."""
    if not jobs.lock_live(tx, job_id):  # several may find it unreadable at once
        return False
    dropped = _drop(tx, job_id, steps.open_calls(tx, job_id))
    jobs.end(tx, job_id, JobStatus.FAILED, reason=error.code, message=error.message, answer=None)
    data = {"reason": error.code, "message": error.message}
    notices.record(tx, job_id, *dropped, NewEvent(EventType.JOB_FAILED, data))
    return True


def _drop(tx: Transaction, job_id: str, left: Sequence[Call]) -> list[NewEvent]:
    """Cancel calls of a job that ends, those in doubt as such, and withdraw what it asked people; the events that tell of it."""
    doubtful = {call.id for call in left if may_have_happened(call)}
    steps.cancel_calls(tx, [call.id for call in left if call.id not in doubtful])
    steps.cancel_calls(tx, doubtful, {"preview": TOLD, "details": DOUBTED})
    withdrawn = [
        NewEvent(
            EventType.APPROVAL_DECIDED,
            {"approval_id": approval_id, "call_id": call_id, "status": ApprovalStatus.WITHDRAWN.value, "by": _PLATFORM, "note": None},
        )
        for approval_id, call_id in approvals.withdraw(tx, job_id, by=_PLATFORM)
    ]
    told = {"observation": TOLD, "details": DOUBTED}
    cancelled = [
        NewEvent(
            EventType.CALL_CANCELLED,
            {"call_id": call.id, "step": call.step, "tool": call.tool} | (told if call.id in doubtful else {}),
        )
        for call in left
    ]
    return [*withdrawn, *cancelled]
