"""The usual claim and record of a planner, see `db.usual`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    CTE,
    BigInteger,
    Boolean,
    ColumnElement,
    Float,
    Integer,
    Numeric,
    SmallInteger,
    TableValuedAlias,
    Text,
    and_,
    any_,
    case,
    exists,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql.base import Executable

from dualtrack.db import budgets
from dualtrack.db.claims import KEY_LIMITED
from dualtrack.db.hook_tables import webhooks
from dualtrack.db.prepared import Prepared, given
from dualtrack.db.rows import AnyRow
from dualtrack.db.swift import Runs
from dualtrack.db.tables import USAGE_COLUMNS, approvals, calls, events, jobs, steps
from dualtrack.db.usual import EVENT_COLUMNS, UNASKED, Types, fits, ids, joined, rows, seconds
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import JobStatus, Phase
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.usage import Usage
from dualtrack.domain.waiting import ApprovalStatus

# Jobs are claimed


class Claimed(NamedTuple):
    """A job that was claimed, and its last step with its calls, as rows."""

    job: AnyRow
    """As `db.claims.claim` gives it."""
    step: AnyRow
    """None where it has none yet."""
    calls: list[AnyRow]


def claim(tx: Runs, job_ids: Sequence[str], owner: int, limits: PlatformLimits) -> dict[str, Claimed]:
    """Claim those of the jobs that run, whose last record was a success, that are nobody's child and are asked for nothing; by id.

    Those that are queued run from now on, and their `job.started` is written.

    Another transaction may have written the last step in the moment in which this one began: then not all of it is there, or not as it is.
    """
    found: dict[str, Claimed] = {}
    for row in _CLAIM.run(tx, {"chosen": joined(job_ids), "claimant": owner, "lease": limits.lease_s}):
        if row[0] not in found:
            step = row[_JOB_COLUMNS:_STEP_COLUMNS]
            found[row[0]] = Claimed(_JobRow._make(row[:_JOB_COLUMNS]), None if step[0] is None else _StepRow._make(step), [])
        if row[_STEP_COLUMNS] is not None:
            found[row[0]].calls.append(_CallRow._make(row[_STEP_COLUMNS:]))
    return found


_JobRow: Final = NamedTuple("_JobRow", [(name, Any) for name in (*jobs.c.keys(), "key_limited", "time_over")])  # type: ignore[misc]
_StepRow: Final = NamedTuple("_StepRow", [(name, Any) for name in steps.c.keys()])  # type: ignore[misc] # noqa: SIM118 - the table's columns
_CallRow: Final = NamedTuple("_CallRow", [(name, Any) for name in calls.c.keys()])  # type: ignore[misc] # noqa: SIM118 - as above
_JOB_COLUMNS: Final = len(jobs.c) + 2
_STEP_COLUMNS: Final = _JOB_COLUMNS + len(steps.c)


def _claim_statement() -> Executable:
    planning = (jobs.c.phase == Phase.PLAN.value, jobs.c.status.in_([JobStatus.QUEUED.value, JobStatus.RUNNING.value]))
    untroubled = (jobs.c.owner.is_(None), jobs.c.not_before.is_(None), jobs.c.tries == 0)
    simple = (jobs.c.root_id.is_(None), jobs.c.messages == 0)
    chosen = jobs.c.id == any_(ids("chosen"))
    locked = (
        select(jobs.c.id, (jobs.c.status == JobStatus.QUEUED.value).label("fresh"))
        .where(chosen, fits(*planning, *untroubled, *simple, *UNASKED))
        .with_for_update(skip_locked=True)
        .cte("locked")
    )
    until = func.clock_timestamp() + seconds("lease")
    values = {
        "attempt": jobs.c.attempt + 1,
        "tries": 1,
        "owner": given("claimant"),
        "lease_until": until,
        "due_at": until,
        "rings": 0,
        "started_at": func.coalesce(jobs.c.started_at, func.now()),
        "status": JobStatus.RUNNING.value,
        "last_seq": jobs.c.last_seq + case((locked.c.fresh, 1), else_=0),
    }
    change = update(jobs).where(jobs.c.id == locked.c.id).values(values)
    time_over = (jobs.c.deadline_at <= func.clock_timestamp()).label("time_over")
    claimed = change.returning(*jobs.c, KEY_LIMITED, time_over, locked.c.fresh).cte("claimed")
    event = select(claimed.c.id, claimed.c.last_seq, literal(EventType.JOB_STARTED.value), literal({}, JSONB)).where(claimed.c.fresh)
    started = insert(events).from_select(EVENT_COLUMNS, event).cte("started")
    last = claimed.outerjoin(steps, and_(steps.c.job_id == claimed.c.id, steps.c.number == claimed.c.step))
    its_calls = and_(calls.c.job_id == claimed.c.id, calls.c.step == claimed.c.step)
    its_own = [each for each in claimed.c if each is not claimed.c.fresh]
    columns = [*its_own, *(each.label(f"step_{each.name}") for each in steps.c), *(each.label(f"call_{each.name}") for each in calls.c)]
    return select(*columns).select_from(last.outerjoin(calls, its_calls)).order_by(calls.c.position).add_cte(started)


_CLAIM: Final = Prepared(_claim_statement)


# Decisions are written down


class Decided(NamedTuple):
    """A decision that has calls for executors, or ends its job as a success, and nothing else of note."""

    job: Job
    """As it was claimed."""
    thought: str
    reflection: str
    model: str
    usage: Usage
    latency_s: float
    plan: Sequence[Mapping[str, Any]] | None
    """The new one; None: as it was."""
    rows: Sequence[Mapping[str, Any]]
    """Calls as `steps.add_calls` takes them, without times: those with `ok` have ended."""
    first: Sequence[str]
    """Ids of those that may run from now on."""
    events: Sequence[NewEvent]
    answer: str | None = None
    """The job ends with it; None: it goes on."""


class Recorded(NamedTuple):
    """What was written."""

    job_id: str
    attempt: int
    finished_at: datetime | None
    """When the job ended with it."""


def record(tx: Runs, decided: Sequence[Decided], *, ring_s: float) -> dict[tuple[str, int], Recorded]:
    """Write those of the decisions whose jobs are asked for nothing and still claimed by the attempt that made them; by job and attempt.

    Those that end their jobs, and those that don't, are a transaction each.

    Not those that have a call with a column that this does not know. Nor do jobs end here that are somebody's child, wait for anything,
    have been told of anything since they were claimed, or whose end a webhook is to be told.
    """
    known = [each for each in decided if all(row.keys() <= _ROW_COLUMNS for row in each.rows)]
    going, ending = [each for each in known if each.answer is None], [each for each in known if each.answer is not None]
    return _record(tx, going, _RECORD, _RECORD_KEYED, ring_s) | _record(tx, ending, _END, _END_KEYED, ring_s)


def _record(tx: Runs, known: Sequence[Decided], plain: Prepared, keyed: Prepared, ring_s: float) -> dict[tuple[str, int], Recorded]:
    if not known:
        return {}
    values = {
        "decided": [_decision(each) for each in known],
        "called": [
            {**row, "of_attempt": each.job.attempt, "due": row["id"] in each.first, "settled": "ok" in row}
            for each in known
            for row in each.rows
        ],
        "told": [
            {"job": each.job.id, "of_attempt": each.job.attempt, "n": n, "type": event.type.value, "data": event.data}
            for each in known
            for n, event in enumerate(each.events, 1)
        ],
        "ring": ring_s,
    }
    statement = plain if all(each.job.key_id is None for each in known) else keyed
    return {(row[0], row[1]): Recorded(*row) for row in statement.run(tx, values)}


_ROW_COLUMNS: Final = frozenset(
    {"id", "job_id", "tenant_id", "step", "position", "wave", "tool", "effect", "arguments", "status", "ok", "preview", "traceparent"}
)
_DECISION: Final[Types] = {
    "job": Text,
    "of_attempt": Integer,
    "number": Integer,
    "thought": Text,
    "reflection": Text,
    "model": Text,
    "latency_s": Float,
    "input_tokens": BigInteger,
    "output_tokens": BigInteger,
    "cached_tokens": BigInteger,
    "cost_usd": Numeric,
    "context_tokens": Integer,
    "plan": JSONB,
    "key": Text,
    "shard": SmallInteger,
    "told": Integer,
    "seq": BigInteger,
    "messages": Integer,
    "answer": Text,
}
_CALL: Final[Types] = {
    "id": Text,
    "job_id": Text,
    "of_attempt": Integer,
    "tenant_id": Text,
    "step": Integer,
    "position": SmallInteger,
    "wave": SmallInteger,
    "tool": Text,
    "effect": Text,
    "arguments": JSONB,
    "status": Text,
    "ok": Boolean,
    "preview": Text,
    "traceparent": Text,
    "due": Boolean,
    "settled": Boolean,
}
_EVENT: Final[Types] = {"job": Text, "of_attempt": Integer, "n": BigInteger, "type": Text, "data": JSONB}


def _decision(decided: Decided) -> dict[str, Any]:
    job, usage = decided.job, decided.usage
    return {
        "job": job.id,
        "of_attempt": job.attempt,
        "number": job.step + 1,
        "thought": decided.thought,
        "reflection": decided.reflection,
        "model": decided.model,
        "latency_s": decided.latency_s,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        "cost_usd": str(usage.cost_usd),
        "context_tokens": usage.total_tokens,
        "plan": decided.plan,
        "key": job.key_id,
        "shard": budgets.shard_of(job.id),
        "told": len(decided.events),
        "seq": job.last_seq,
        "messages": job.messages,
        "answer": decided.answer,
    }


def _record_statement(*more: Callable[[CTE], CTE], ending: bool = False) -> Executable:
    """The jobs' change, and with it the steps, their calls and the events."""
    decided = rows("decided", _DECISION)
    locked = (
        select(jobs.c.id, *(each.label(f"new_{each.name}") for each in decided.c))
        .select_from(jobs.join(decided, jobs.c.id == decided.c.job))
        .where(fits(jobs.c.attempt == decided.c.of_attempt, jobs.c.owner.is_not(None), *UNASKED), *(_at_rest(decided) if ending else ()))
        .with_for_update(of=jobs, skip_locked=True)
        .cte("locked")
    )
    new = {name: locked.c[f"new_{name}"] for name in _DECISION}
    changed = (
        update(jobs)
        .where(jobs.c.id == locked.c.id)
        .values(
            owner=None,
            lease_until=None,
            step=new["number"],
            tries=0,
            failures=0,
            malformed=0,
            rings=0,
            context_tokens=new["context_tokens"],
            due_at=None,
            plan=func.coalesce(new["plan"], jobs.c.plan),
            last_seq=jobs.c.last_seq + new["told"],
            **{name: jobs.c[name] + new[name] for name in USAGE_COLUMNS},
            **(_over(new["answer"]) if ending else {"phase": Phase.EXECUTE.value}),
        )
        .returning(
            jobs.c.id,
            (jobs.c.last_seq - new["told"]).label("before"),
            jobs.c.finished_at,
            *(each.label(name) for name, each in new.items()),
        )
        .cte("changed")
    )
    names = ["number", "thought", "reflection", "model", "latency_s", *USAGE_COLUMNS]
    step = select(changed.c.id, *(changed.c[name] for name in names), literal(""))
    stepped = insert(steps).from_select(["job_id", *names, "note"], step).cte("stepped")
    told = select(changed.c.id, changed.c.of_attempt, changed.c.finished_at)
    return told.add_cte(stepped, _called(changed), _told(changed), *(make(changed) for make in more))


def _at_rest(decided: TableValuedAlias) -> tuple[ColumnElement[bool], ...]:
    """Nothing of the job is open but this decision, and nobody is to be told of its end but by its event."""
    open_calls = exists().where(calls.c.job_id == jobs.c.id, calls.c.step == jobs.c.step, calls.c.finished_at.is_(None))
    requests = exists().where(approvals.c.job_id == jobs.c.id, fits(approvals.c.status == ApprovalStatus.PENDING.value))
    on = fits(webhooks.c.disabled_at.is_(None))
    tenants = exists().where(webhooks.c.tenant_id == jobs.c.tenant_id, webhooks.c.job_id.is_(None), on)
    its_own = exists().where(webhooks.c.job_id == jobs.c.id, on)
    unchanged = (jobs.c.last_seq == decided.c.seq, jobs.c.messages == decided.c.messages)
    return fits(*unchanged, jobs.c.root_id.is_(None)), ~open_calls, ~requests, ~tenants, ~its_own


def _over(answer: ColumnElement[str]) -> dict[str, Any]:
    """What `db.jobs.end` writes."""
    nothing = dict.fromkeys(("reason", "message", "waiting_since", "waiting_until"))
    return {**nothing, "status": JobStatus.SUCCEEDED.value, "phase": Phase.NONE.value, "answer": answer, "finished_at": func.now()}


def _called(changed: CTE) -> CTE:
    row = rows("called", _CALL)
    ended = case((row.c.settled, func.now()))
    found = {
        **{name: row.c[name] for name in ("id", "job_id", "tenant_id", "step", "position", "tool", "effect", "arguments", "status", "ok")},
        "wave": func.coalesce(row.c.wave, 0),
        "preview": func.coalesce(row.c.preview, ""),
        "traceparent": func.coalesce(row.c.traceparent, ""),
        "due_at": case((row.c.due, func.now() + seconds("ring"))),
        "started_at": ended,
        "finished_at": ended,
    }
    its = select(*found.values()).select_from(
        changed.join(row, and_(changed.c.id == row.c.job_id, changed.c.of_attempt == row.c.of_attempt))
    )
    return insert(calls).from_select(list(found), its).cte("inserted_calls")


def _told(changed: CTE) -> CTE:
    told = rows("told", _EVENT)
    its = select(changed.c.id, changed.c.before + told.c.n, told.c.type, told.c.data)
    theirs = and_(changed.c.id == told.c.job, changed.c.of_attempt == told.c.of_attempt)
    return insert(events).from_select(EVENT_COLUMNS, its.select_from(changed.join(told, theirs))).cte("written")


def _spent(changed: CTE) -> CTE:
    return budgets.adding_all(changed).cte("spent")


_RECORD: Final = Prepared(_record_statement)
_RECORD_KEYED: Final = Prepared(lambda: _record_statement(_spent))
_END: Final = Prepared(lambda: _record_statement(ending=True))
_END_KEYED: Final = Prepared(lambda: _record_statement(_spent, ending=True))
