"""Starting children: what becomes of calls of `delegate` once their turn has come."""

from __future__ import annotations

from collections.abc import Sequence

from dualtrack.db import approvals, children, events
from dualtrack.db.engine import Transaction
from dualtrack.domain.children import child_spec, refusal
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import CallStatus
from dualtrack.domain.step import Call
from dualtrack.engine import doorbells, intake
from dualtrack.engine.runtime import Runtime


def start(tx: Transaction, runtime: Runtime, job: Job, calls: Sequence[Call]) -> None:
    """Start a child for each of these pending calls of a job (its row locked), as it stands now; each call then waits for its child.

    Children beyond the limit are refused: their calls have their outcome at once.
    """
    limits = runtime.limits
    room = limits.children - children.count(tx, job.id)
    for number, call in enumerate(calls):
        refused = refusal(job, call.arguments, limits)  # an approval may have edited them
        if refused is None and number >= room:
            refused = f"Not delegated: a job may have {limits.children} children. Do it yourself."
        if not approvals.permits(tx, call):  # nothing leads here: should anything, it ends here
            refused = "Not delegated: it needs an approval of its arguments and has none."
        if refused is not None:
            _refuse(tx, job, call, refused)
            continue
        child = intake.create(
            tx,
            runtime,
            intake.Prepared(job.tenant_id, child_spec(job, call.arguments, limits), (), job.workspace, None),
            key_id=job.key_id,
            source={"parent_id": job.id, "parent_call_id": call.id},
            lineage={"parent_id": job.id, "parent_call_id": call.id, "root_id": job.root_id or job.id, "depth": job.depth + 1},
            traceparent=call.traceparent,
        )
        children.hold_for(tx, call.id, child.id)
        events.append(tx, job.id, NewEvent(EventType.CHILD_STARTED, {"call_id": call.id, "step": call.step, "job_id": child.id}))
        doorbells.plan_after_commit(tx, runtime, child)


def _refuse(tx: Transaction, job: Job, call: Call, text: str) -> None:
    children.settle(tx, call.id, {"status": CallStatus.FAILED.value, "ok": False, "preview": text})
    data = {"call_id": call.id, "step": call.step, "tool": call.tool, "ok": False, "observation": text}
    events.append(tx, job.id, NewEvent(EventType.CALL_FINISHED, data))
