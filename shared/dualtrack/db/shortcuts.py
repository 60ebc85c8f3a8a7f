"""The usual case of a step's transactions, each in one statement instead of four or five.

Every one of them asks for all that makes the case usual and changes nothing where something is not as it asks; the caller then goes the
general way, which tells the cases apart. What they write is what the general way would. As everywhere, the job's row is locked first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from psycopg.types.json import Jsonb
from sqlalchemy import (
    CTE,
    Boolean,
    Integer,
    Interval,
    SmallInteger,
    Text,
    and_,
    case,
    column,
    exists,
    func,
    insert,
    literal,
    select,
    true,
    update,
)
from sqlalchemy import Update as UpdateStatement
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.sql.base import Executable

from dualtrack.db import budgets
from dualtrack.db.engine import Transaction
from dualtrack.db.prepared import Plus, Prepared, Update, given
from dualtrack.db.rows import call_of, job_of
from dualtrack.db.tables import calls, events, jobs, steps
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import CallStatus, JobStatus, Phase
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.step import Call
from dualtrack.domain.usage import Usage

_UNASKED: Final = (jobs.c.stopping.is_(None), jobs.c.hold.is_(None), jobs.c.finished_at.is_(None))
"""Nobody wants anything of the job but that it goes on."""


def _written(counted: CTE) -> CTE:
    """The events `types` and `datas` of the job in `counted` (id, last_seq as it is with them)."""
    types, datas = given("types", ARRAY(Text())), given("datas", ARRAY(JSONB()))
    new = func.unnest(types, datas).table_valued("type", "data", with_ordinality="n", name="new").render_derived()
    first = counted.c.last_seq - func.cardinality(types)
    rows = select(counted.c.id, first + new.c.n, new.c.type, new.c.data).select_from(counted.join(new, true()))
    return insert(events).from_select(["job_id", "seq", "type", "data"], rows).cte("written")


def _event_parameters(new: Sequence[NewEvent]) -> dict[str, Any]:
    return {"types": [event.type.value for event in new], "datas": [Jsonb(event.data) for event in new]}


# A call begins


def begin_call(tx: Transaction, call_id: str, owner: int, limits: PlatformLimits) -> tuple[Job, Call] | None:
    """Claim a call that was never tried, needs nobody's approval, and whose job is asked for nothing; `call.started` is written.

    Raises:
        RecordUnreadable: the job can't be read by this release.
    """
    values = {"call": call_id, "claimant": owner, "lease": timedelta(seconds=limits.lease_s)}
    row = _BEGIN.run(tx, values).fetchone()
    if row is None:
        return None
    return job_of(_JobRow._make(row[: len(jobs.c)])), call_of(_CallRow._make(row[len(jobs.c) :]))


_JobRow: Final = NamedTuple("_JobRow", [(name, Any) for name in jobs.c.keys()])  # type: ignore[misc] # noqa: SIM118 - the table's columns
_CallRow: Final = NamedTuple("_CallRow", [(name, Any) for name in calls.c.keys()])  # type: ignore[misc] # noqa: SIM118 - as above


def _begin_statement() -> Executable:
    its_job = select(calls.c.job_id).where(calls.c.id == given("call")).scalar_subquery()
    locked = select(jobs).where(jobs.c.id == its_job, *_UNASKED).with_for_update().cte("locked")
    never_tried = (
        calls.c.status == CallStatus.PENDING.value,
        calls.c.due_at.is_not(None),
        calls.c.owner.is_(None),
        calls.c.not_before.is_(None),
        calls.c.tries == 0,
    )
    free = (calls.c.held.is_(None), calls.c.guarded.is_(False), calls.c.intent_at.is_(None))
    until = func.clock_timestamp() + given("lease", Interval())
    claimed = (
        update(calls)
        .where(calls.c.id == given("call"), calls.c.job_id == locked.c.id, *never_tried, *free)
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
    counted = (
        update(jobs)
        .where(jobs.c.id == claimed.c.job_id)
        .values(last_seq=jobs.c.last_seq + 1)
        .returning(jobs.c.id, jobs.c.last_seq)
        .cte("counted")
    )
    data = func.jsonb_build_object(
        "call_id", claimed.c.id, "step", claimed.c.step, "tool", claimed.c.tool, "attempt", claimed.c.attempt, type_=JSONB
    )
    event = select(counted.c.id, counted.c.last_seq, literal(EventType.CALL_STARTED.value), data)
    written = insert(events).from_select(["job_id", "seq", "type", "data"], event.select_from(counted.join(claimed, true())))
    both = [*(found.label(f"job_{found.name}") for found in locked.c), *(found.label(f"call_{found.name}") for found in claimed.c)]
    return select(*both).select_from(locked.join(claimed, true())).add_cte(written.cte("written"))


_BEGIN: Final = Prepared(_begin_statement)


# The last call of a step ends


class Outcome(NamedTuple):
    """How a call ended."""

    ok: bool
    preview: str
    observation_key: str | None
    details: Mapping[str, Any]
    workspace: str | None
    """Digest of the workspace after it."""
    changes_workspace: bool


def finish_last_call(tx: Transaction, call: Call, outcome: Outcome, event: NewEvent, *, ring_s: float) -> bool:
    """Write the outcome of the only call of its step still open, and hand its job, which is asked for nothing, to the planner."""
    status = CallStatus.SUCCEEDED if outcome.ok else CallStatus.FAILED
    values = {
        "job": call.job_id,
        "step": call.step,
        "call": call.id,
        "of_attempt": call.attempt,
        "new_status": status.value,
        "ring": timedelta(seconds=ring_s),
        **outcome._asdict(),
        **_event_parameters([event]),
    }
    return _FINISH.run(tx, values).fetchone() is not None


def _finish_statement() -> Executable:
    others = exists().where(
        calls.c.job_id == given("job"), calls.c.step == given("step"), calls.c.id != given("call"), calls.c.finished_at.is_(None)
    )
    executing = (jobs.c.id == given("job"), jobs.c.status == JobStatus.RUNNING.value, jobs.c.phase == Phase.EXECUTE.value)
    # A call that ends while this waits for the lock may still seem open, and the general way is gone; none that has ended opens again.
    locked = select(jobs.c.id).where(*executing, *_UNASKED, ~others).with_for_update().cte("locked")
    changes = given("changes_workspace", Boolean())
    settled = (
        update(calls)
        .where(
            calls.c.id == given("call"),
            calls.c.job_id == locked.c.id,
            calls.c.attempt == given("of_attempt"),
            calls.c.status == CallStatus.RUNNING.value,
        )
        .values(
            status=given("new_status"),
            ok=given("ok", Boolean()),
            preview=given("preview"),
            observation_key=given("observation_key"),
            details=given("details", JSONB()),
            workspace=case((changes, given("workspace", Text())), else_=calls.c.workspace),
            owner=None,
            lease_until=None,
            due_at=None,
            held=None,
            finished_at=func.now(),
        )
        .returning(calls.c.job_id)
        .cte("settled")
    )
    counted = (
        update(jobs)
        .where(jobs.c.id == settled.c.job_id)
        .values(
            last_seq=jobs.c.last_seq + 1,
            workspace=case((changes, given("workspace", Text())), else_=jobs.c.workspace),
            phase=Phase.PLAN.value,
            due_at=func.now() + given("ring", Interval()),
            rings=0,
            tries=0,
            failures=0,
        )
        .returning(jobs.c.id, jobs.c.last_seq)
        .cte("counted")
    )
    return select(counted.c.id).add_cte(_written(counted))


_FINISH: Final = Prepared(_finish_statement)


# A decision is written down


class Decided(NamedTuple):
    """A decision as its step's row has it."""

    number: int
    thought: str
    reflection: str
    model: str
    usage: Usage
    latency_s: float


def record_decision(
    tx: Transaction,
    job: Job,
    decided: Decided,
    values: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    new: Sequence[NewEvent],
    *,
    first: Sequence[str],
    ring_s: float,
) -> bool:
    """Give the planner's claim of a job, which is asked for nothing, back with `values`; its step, the step's calls and events are written.

    `rows` are calls as `steps.add_calls` takes them, without times: those with `ok` have ended, those of `first` may run from now on.
    False as well where a row has a column that this does not know.
    """
    if not all(row.keys() <= _ROW_COLUMNS for row in rows):
        return False
    usage = decided.usage
    changes: dict[str, Any] = {
        "owner": None,
        "lease_until": None,
        **values,
        "last_seq": Plus(len(new)),
        **{name: Plus(getattr(usage, name)) for name in _COUNTS},
    }
    given_rows = [{**row, "due": row["id"] in first, "settled": "ok" in row} for row in rows]
    parameters = {
        **decided._asdict(),
        **{name: getattr(usage, name) for name in _COUNTS},
        "job": job.id,
        "of_attempt": job.attempt,
        "tenant": job.tenant_id,
        "rows": given_rows,
        "ring": timedelta(seconds=ring_s),
        **_event_parameters(new),
    }
    del parameters["usage"]
    if job.key_id is None:
        return _DECIDE.run(tx, changes, **parameters).fetchone() is not None
    return _DECIDE_KEYED.run(tx, changes, **parameters, **budgets.spent(job.key_id, job.id, usage)).fetchone() is not None


_COUNTS: Final = ("input_tokens", "output_tokens", "cached_tokens", "cost_usd")
_ROW_COLUMNS: Final = frozenset(
    {"id", "job_id", "tenant_id", "step", "position", "wave", "tool", "effect", "arguments", "status", "ok", "preview", "traceparent"}
)


def _deciding(change: UpdateStatement, *more: Callable[[CTE], CTE]) -> Executable:
    """A job's change, and with it the step, its calls and the events."""
    changed = change.cte("changed")
    names = ("number", "thought", "reflection", "model", "latency_s", *_COUNTS)
    step = select(changed.c.id, *(given(name, steps.c[name].type) for name in names))
    stepped = insert(steps).from_select(["job_id", *names, "note"], step.add_columns(literal(""))).cte("stepped")
    return select(changed.c.id).add_cte(stepped, _called(changed), _written(changed), *(make(changed) for make in more))


def _called(changed: CTE) -> CTE:
    kinds = {"id": Text, "position": SmallInteger, "wave": SmallInteger, "tool": Text, "effect": Text, "arguments": JSONB, "status": Text}
    kinds |= {"ok": Boolean, "preview": Text, "traceparent": Text, "due": Boolean, "settled": Boolean}
    columns = [column(name, kind()) for name, kind in kinds.items()]
    row = func.jsonb_to_recordset(given("rows", JSONB())).table_valued(*columns, name="row").render_derived(with_types=True).c
    ended = case((row.settled, func.now()))
    found = {
        "job_id": changed.c.id,
        "tenant_id": given("tenant", Text()),
        "step": given("number", Integer()),
        **{name: row[name] for name in ("id", "position", "tool", "effect", "arguments", "status", "ok")},
        "wave": func.coalesce(row.wave, 0),
        "preview": func.coalesce(row.preview, ""),
        "traceparent": func.coalesce(row.traceparent, ""),
        "due_at": case((row.due, func.now() + given("ring", Interval()))),
        "started_at": ended,
        "finished_at": ended,
    }
    return insert(calls).from_select(list(found), select(*found.values()).select_from(changed.join(row.id.table, true()))).cte("called")


_DECIDED: Final = and_(jobs.c.id == given("job"), jobs.c.attempt == given("of_attempt"), jobs.c.owner.is_not(None), *_UNASKED)
_DECIDE: Final = Update(jobs, _DECIDED, jobs.c.id, jobs.c.last_seq, around=_deciding)
_DECIDE_KEYED: Final = Update(
    jobs,
    _DECIDED,
    jobs.c.id,
    jobs.c.last_seq,
    around=lambda change: _deciding(change, lambda changed: budgets.adding_spent(changed).cte("spent")),
)
