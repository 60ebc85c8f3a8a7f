"""The usual beginning and end of calls, see `db.usual`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Boolean, Integer, Text, any_, case, exists, func, insert, literal, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql.base import Executable

from dualtrack.db.prepared import Prepared, given
from dualtrack.db.rows import AnyRow
from dualtrack.db.swift import Runs
from dualtrack.db.tables import calls, events, jobs
from dualtrack.db.usual import EVENT_COLUMNS, UNASKED, fits, ids, joined, rows, seconds
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.lifecycle import CallStatus, JobStatus, Phase
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.step import Call

# Calls begin


class Begun(NamedTuple):
    """A call that was claimed, and its job as it was before, as rows."""

    job: AnyRow
    call: AnyRow


def begin(tx: Runs, call_ids: Sequence[str], owner: int, limits: PlatformLimits) -> dict[str, Begun]:
    """Claim those of the calls that were never tried, need nobody's approval, and whose jobs are asked for nothing; by id.

    Their `call.started` is written.
    """
    values = {"chosen": joined(call_ids), "claimant": owner, "lease": limits.lease_s}
    return {
        row[_JOB_COLUMNS]: Begun(_JobRow._make(row[:_JOB_COLUMNS]), _CallRow._make(row[_JOB_COLUMNS:])) for row in _BEGIN.run(tx, values)
    }


_JobRow: Final = NamedTuple("_JobRow", [(name, Any) for name in jobs.c.keys()])  # type: ignore[misc] # noqa: SIM118 - the table's columns
_CallRow: Final = NamedTuple("_CallRow", [(name, Any) for name in calls.c.keys()])  # type: ignore[misc] # noqa: SIM118 - as above
_JOB_COLUMNS: Final = len(jobs.c)


def _begin_statement() -> Executable:
    chosen = ids("chosen")
    theirs = select(calls.c.job_id).distinct().where(calls.c.id == any_(chosen)).cte("theirs")
    locked = (
        select(jobs)
        .select_from(theirs.join(jobs, jobs.c.id == theirs.c.job_id))
        .where(fits(*UNASKED))
        .with_for_update(of=jobs, skip_locked=True)
        .cte("locked")
    )
    never_tried = (
        calls.c.status == CallStatus.PENDING.value,
        calls.c.due_at.is_not(None),
        calls.c.owner.is_(None),
        calls.c.not_before.is_(None),
        calls.c.tries == 0,
    )
    free = (calls.c.held.is_(None), calls.c.guarded.is_(False), calls.c.intent_at.is_(None))
    until = func.clock_timestamp() + seconds("lease")
    claimed = (
        update(calls)
        .where(calls.c.id == any_(chosen), fits(calls.c.job_id == locked.c.id, *never_tried, *free))
        .values(
            status=CallStatus.RUNNING.value,
            attempt=calls.c.attempt + 1,
            tries=1,
            owner=given("claimant"),
            lease_until=until,
            due_at=until,
            rings=0,
            started_at=func.coalesce(calls.c.started_at, func.now()),
        )
        .returning(*calls.c)
        .cte("claimed")
    )
    by_job = select(claimed.c.job_id, func.count().label("begun")).group_by(claimed.c.job_id).cte("by_job")
    counted = (
        update(jobs)
        .where(jobs.c.id == by_job.c.job_id)
        .values(last_seq=jobs.c.last_seq + by_job.c.begun)
        .returning(jobs.c.id, (jobs.c.last_seq - by_job.c.begun).label("before"))
        .cte("counted")
    )
    number = func.row_number().over(partition_by=claimed.c.job_id, order_by=claimed.c.position)
    data = func.jsonb_build_object(
        "call_id", claimed.c.id, "step", claimed.c.step, "tool", claimed.c.tool, "attempt", claimed.c.attempt, type_=JSONB
    )
    event = select(counted.c.id, counted.c.before + number, literal(EventType.CALL_STARTED.value), data)
    written = insert(events).from_select(EVENT_COLUMNS, event.select_from(counted.join(claimed, counted.c.id == claimed.c.job_id)))
    both = [*(found.label(f"job_{found.name}") for found in locked.c), *(found.label(f"call_{found.name}") for found in claimed.c)]
    return select(*both).select_from(locked.join(claimed, locked.c.id == claimed.c.job_id)).add_cte(written.cte("written"))


_BEGIN: Final = Prepared(_begin_statement)


# The last calls of steps end


class Outcome(NamedTuple):
    """How a call ended."""

    ok: bool
    preview: str
    observation_key: str | None
    details: Mapping[str, Any]
    workspace: str | None
    """Digest of the workspace after it."""
    changes_workspace: bool


class Ended(NamedTuple):
    """A call, how it ended, and the event that tells of it."""

    call: Call
    outcome: Outcome
    event: NewEvent


def finish(tx: Runs, ended: Sequence[Ended], *, ring_s: float) -> set[tuple[str, int]]:
    """Write the outcomes of those calls that are the only ones of their step still open, and hand their jobs, which are asked for
    nothing, to the planner; call and attempt.
    """
    values = {"ended": [_ended(*each) for each in ended], "ring": ring_s}
    return set(_FINISH.run(tx, values))


def _ended(call: Call, outcome: Outcome, event: NewEvent) -> dict[str, Any]:
    status = CallStatus.SUCCEEDED if outcome.ok else CallStatus.FAILED
    whose = {"id": call.id, "job": call.job_id, "step": call.step, "of_attempt": call.attempt}
    return {**whose, "status": status.value, **outcome._asdict(), "type": event.type.value, "data": event.data}


def _finish_statement() -> Executable:
    kinds = {"id": Text, "job": Text, "step": Integer, "of_attempt": Integer, "status": Text, "ok": Boolean, "preview": Text}
    kinds |= {"observation_key": Text, "details": JSONB, "workspace": Text, "changes_workspace": Boolean, "type": Text, "data": JSONB}
    ended = rows("ended", kinds)
    others = exists().where(
        calls.c.job_id == ended.c.job, calls.c.step == ended.c.step, calls.c.id != ended.c.id, calls.c.finished_at.is_(None)
    )
    executing = (jobs.c.status == JobStatus.RUNNING.value, jobs.c.phase == Phase.EXECUTE.value)
    # A call that has just ended may still seem open, and the general way is gone; none that has ended opens again.
    locked = (
        select(jobs.c.id)
        .select_from(jobs.join(ended, jobs.c.id == ended.c.job))
        .where(fits(*executing, *UNASKED), ~others)
        .with_for_update(of=jobs, skip_locked=True)
        .cte("locked")
    )
    settled = (
        update(calls)
        .where(
            calls.c.id == ended.c.id,
            locked.c.id == ended.c.job,
            fits(calls.c.attempt == ended.c.of_attempt, calls.c.status == CallStatus.RUNNING.value),
        )
        .values(
            status=ended.c.status,
            ok=ended.c.ok,
            preview=ended.c.preview,
            observation_key=ended.c.observation_key,
            details=ended.c.details,
            workspace=case((ended.c.changes_workspace, ended.c.workspace), else_=calls.c.workspace),
            owner=None,
            lease_until=None,
            due_at=None,
            held=None,
            finished_at=func.now(),
        )
        .returning(calls.c.id, calls.c.attempt, calls.c.job_id, ended.c.changes_workspace, ended.c.workspace, ended.c.type, ended.c.data)
        .cte("settled")
    )
    counted = (
        update(jobs)
        .where(jobs.c.id == settled.c.job_id)
        .values(
            last_seq=jobs.c.last_seq + 1,
            workspace=case((settled.c.changes_workspace, settled.c.workspace), else_=jobs.c.workspace),
            phase=Phase.PLAN.value,
            due_at=func.now() + seconds("ring"),
            rings=0,
            tries=0,
            failures=0,
        )
        .returning(jobs.c.id, jobs.c.last_seq, settled.c.type, settled.c.data)
        .cte("counted")
    )
    written = insert(events).from_select(EVENT_COLUMNS, select(counted.c.id, counted.c.last_seq, counted.c.type, counted.c.data))
    return select(settled.c.id, settled.c.attempt).add_cte(counted, written.cte("written"))


_FINISH: Final = Prepared(_finish_statement)
