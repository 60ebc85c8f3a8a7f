"""The ledger of external calls: intent, idempotency key, outcome; and what becomes of a call of which nobody knows whether it happened.

The intent is committed before anything leaves the platform. So a call without one surely did not happen and is simply made; one with
an intent and no outcome, met again after a crash or a lost answer, is in doubt and never silently made twice.
"""

from __future__ import annotations

from typing import Final

from dualtrack.db import events, steps
from dualtrack.db.engine import Transaction
from dualtrack.domain.doubt import DOUBTED, TOLD
from dualtrack.domain.errors import DualtrackError, OutgoingError, UnknownTool
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import CallStatus, JobStatus
from dualtrack.domain.policy import judge
from dualtrack.domain.reasons import Reason
from dualtrack.domain.step import Call
from dualtrack.domain.tool import Effect, OnUnknown
from dualtrack.domain.waiting import ApprovalKind
from dualtrack.engine import approvals, flow
from dualtrack.engine.ending import end_job
from dualtrack.engine.runtime import Runtime

_ASKED: Final = "The call was begun, but its answer never came. Did it happen?"


def begin(runtime: Runtime, call: Call) -> None:
    """Commit the intent of a claimed external call. Raises `StaleAttempt` when it was taken over meanwhile."""
    with runtime.database.transaction() as tx:
        steps.intend(tx, call.id, call.attempt)


def leaves_doubt(tx: Transaction, call: Call, error: DualtrackError) -> bool:
    """Whether an external call may have happened although this attempt raised."""
    if call.effect is not Effect.EXTERNAL or (isinstance(error, OutgoingError) and not error.sent):
        return False
    return steps.call(tx, call.id).intent_at is not None


def resolve(tx: Transaction, runtime: Runtime, job: Job, call: Call) -> bool:
    """Decide by policies, else by the agent's `on_unknown`, what becomes of a call in doubt, claimed in this attempt, its job's row locked.

    True: it is to be made again, under the same idempotency key. Otherwise it is settled, or held until a person says what happened.
    """
    policy = _ruled(runtime, job, call)
    data = {"call_id": call.id, "step": call.step, "tool": call.tool, "attempt": call.attempt, "policy": policy.value}
    events.append(tx, job.id, NewEvent(EventType.CALL_IN_DOUBT, data))
    if policy is OnUnknown.RETRY:
        steps.doubt(tx, call.id)
        return True
    if policy is OnUnknown.ASK:
        steps.settle(tx, call.id, call.attempt, {"status": CallStatus.PENDING.value, "due_at": None, "tries": 0})
        approvals.request(tx, runtime, job, call, ApprovalKind.UNKNOWN, message=_ASKED)
        flow.go_on(tx, runtime, job)
        return False
    settle_unknown(tx, job, call)
    if policy is OnUnknown.FAIL:
        message = f"Nobody knows whether {call.tool} ({call.id}) happened, and the agent's on_unknown is fail."
        end_job(tx, job.id, JobStatus.FAILED, reason=Reason.OUTCOME_UNKNOWN, message=message)
    else:
        flow.go_on(tx, runtime, job)
    return False


def _ruled(runtime: Runtime, job: Job, call: Call) -> OnUnknown:
    """What is to become of a call in doubt. Where its tool is gone it may have happened all the same, but it can't be made again."""
    wanted = job.spec.agent.on_unknown
    try:
        spec = runtime.registry.tool(call.tool).spec
    except UnknownTool:
        return OnUnknown.TELL if wanted is OnUnknown.RETRY else wanted
    return judge((*runtime.policies, *job.spec.agent.policies), spec, call.arguments).on_unknown or wanted


def settle_unknown(tx: Transaction, job: Job, call: Call) -> None:
    """Write the outcome "unknown" of a claimed call."""
    steps.settle(tx, call.id, call.attempt, {"status": CallStatus.FAILED.value, "ok": False, "preview": TOLD, "details": DOUBTED})
    data = {"call_id": call.id, "step": call.step, "tool": call.tool, "ok": False, "observation": TOLD, "attempt": call.attempt}
    events.append(tx, job.id, NewEvent(EventType.CALL_FINISHED, data | {"details": DOUBTED}))
