"""Steps, their calls and artifacts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Integer, Text, and_, any_, func, insert, literal, select, update
from sqlalchemy.dialects.postgresql import ARRAY

from dualtrack.db.claims import unclaimed
from dualtrack.db.engine import Transaction
from dualtrack.db.prepared import NOW, Insert, Later, Prepared, Update, given
from dualtrack.db.rows import artifact_of, call_of, step_of
from dualtrack.db.tables import artifacts, calls, jobs, steps
from dualtrack.domain.doubt import DOUBTED
from dualtrack.domain.errors import NotFound, StaleAttempt
from dualtrack.domain.lifecycle import CALL_TERMINAL, CallStatus
from dualtrack.domain.step import KEPT_STATE, Artifact, Call, Step
from dualtrack.domain.tool import DELEGATE_TOOL
from dualtrack.domain.usage import Usage
from dualtrack.domain.waiting import Held

_STEP: Final = Insert(steps)
_CALL: Final = Insert(calls)
_STEPS: Final = Prepared(
    lambda: (
        select(steps)
        .where(steps.c.job_id == given("of_job"), steps.c.number > given("after"))
        .order_by(steps.c.number)
        .limit(given("most", Integer()))
    )
)
_CALLS: Final = Prepared(
    lambda: (
        select(calls)
        .where(calls.c.job_id == given("of_job"), calls.c.step.between(given("first"), given("last")))
        .order_by(calls.c.step, calls.c.position)
    )
)
_ONE_CALL: Final = Prepared(lambda: select(calls).where(calls.c.id == given("call")))
_LATEST_CHANGE: Final = Prepared(
    lambda: (
        select(calls.c.id, calls.c.details)
        .where(
            calls.c.job_id == given("of_job"),
            calls.c.tool != DELEGATE_TOOL,  # done by child jobs
            calls.c.workspace.is_not(None),  # the others were refused or denied, or left a job without any files as it was
        )
        # None of these shares its wave (`domain.policies.waves`), so they are recorded in the order of their positions.
        .order_by(calls.c.step.desc(), calls.c.position.desc())
        .limit(1)
    )
)
_OPEN_CALLS: Final = Prepared(
    lambda: select(calls).where(_of_last_step(given("of_job")), calls.c.finished_at.is_(None)).order_by(calls.c.step, calls.c.position)
)
_SETTLE: Final = Update(
    calls, and_(calls.c.id == given("call"), calls.c.attempt == given("of_attempt"), calls.c.status == CallStatus.RUNNING.value)
)
_CHANGE_CALLS: Final = Update(calls, calls.c.id == any_(given("chosen", ARRAY(Text()))))

_LAST_STEP: Final = 2**31 - 1


def add(
    tx: Transaction, *, job_id: str, number: int, thought: str, reflection: str, note: str, model: str, usage: Usage, latency_s: float
) -> None:
    """Write step `number`; its natural key makes a second writer fail."""
    _STEP.run(
        tx,
        {
            "job_id": job_id,
            "number": number,
            "thought": thought,
            "reflection": reflection,
            "note": note,
            "model": model,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cached_tokens": usage.cached_tokens,
            "cost_usd": usage.cost_usd,
            "latency_s": latency_s,
        },
    )


def add_calls(tx: Transaction, rows: Iterable[Mapping[str, Any]]) -> None:
    """Insert calls; what a row leaves out gets its default."""
    for row in rows:
        _CALL.run(tx, row)


def page(tx: Transaction, job_id: str, *, after: int = 0, limit: int | None = None) -> list[Step]:
    """Steps with a number above `after`, in order, with their calls."""
    rows = _STEPS.run(tx, {"of_job": job_id, "after": after, "most": limit}).fetchall()
    if not rows:
        return []
    by_step: dict[int, list[Call]] = {}
    for row in _CALLS.run(tx, {"of_job": job_id, "first": rows[0].number, "last": rows[-1].number}):
        by_step.setdefault(row.step, []).append(call_of(row))
    return [step_of(row, tuple(by_step.get(row.number, ()))) for row in rows]


def call(tx: Transaction, call_id: str, *, job_id: str | None = None) -> Call:
    """A call; of one job where that is given. Raises `NotFound`."""
    row = _ONE_CALL.run(tx, {"call": call_id}).fetchone()
    if row is None or job_id not in {None, row.job_id}:
        raise NotFound(f"There is no call {call_id!r} in this job.", param="call_id")
    return call_of(row)


@dataclass(frozen=True, slots=True)
class LatestChange:
    """The last call of a job that an executor has recorded and that may have changed the workspace."""

    call_id: str
    kept_state: bool = False
    """Whether it left background processes or Python variables in its sandbox (`details.kept_state`)."""


def latest_change(tx: Transaction, job_id: str) -> LatestChange | None:
    """The last such call; None before the first."""
    row = _LATEST_CHANGE.run(tx, {"of_job": job_id}).fetchone()
    return None if row is None else LatestChange(str(row.id), kept_state=bool((row.details or {}).get(KEPT_STATE)))


def readable_call(tx: Transaction, call_id: str, *, job_id: str) -> Call:
    """A call of a job, or of what it was forked from up to there: texts that were copied with a fork still name it. Raises `NotFound`."""
    line = select(jobs.c.id, literal(_LAST_STEP).label("through")).where(jobs.c.id == job_id).cte("line", recursive=True)
    before = select(jobs.c.forked_from, func.least(line.c.through, jobs.c.forked_step)).where(
        jobs.c.id == line.c.id, jobs.c.forked_from.is_not(None)
    )
    line = line.union_all(before)
    statement = select(calls).join(line, (line.c.id == calls.c.job_id) & (calls.c.step <= line.c.through)).where(calls.c.id == call_id)
    row = tx.connection.execute(statement).one_or_none()
    if row is None:
        raise NotFound(f"There is no call {call_id!r} in this job.", param="call_id")
    return call_of(row)


def job_of(tx: Transaction, call_id: str) -> str:
    """The id of a call's job, whatever else is in its row. Raises `NotFound`."""
    found: str | None = tx.connection.execute(select(calls.c.job_id).where(calls.c.id == call_id)).scalar_one_or_none()
    if found is None:
        raise NotFound(f"There is no call {call_id!r}.", param="call_id")
    return found


def settle(tx: Transaction, call_id: str, attempt: int, values: Mapping[str, Any]) -> None:
    """Write a running call's outcome (or give it back), once.

    Raises:
        StaleAttempt: a newer attempt owns the call, or its outcome is written.
    """
    changes: dict[str, Any] = {"owner": None, "lease_until": None, **values}
    if changes.get("status") in {status.value for status in CALL_TERMINAL}:
        changes |= {"due_at": None, "held": None, "finished_at": NOW}
    if _SETTLE.run(tx, changes, call=call_id, of_attempt=attempt).rowcount != 1:
        raise StaleAttempt(f"call {call_id}: attempt {attempt} was taken over")


def intend(tx: Transaction, call_id: str, attempt: int) -> None:
    """Write down that an external call is about to be made: from here on it may have happened.

    Raises:
        StaleAttempt: a newer attempt owns the call.
    """
    ours = (calls.c.id == call_id) & (calls.c.attempt == attempt) & (calls.c.status == CallStatus.RUNNING)
    if tx.connection.execute(update(calls).where(ours).values(intent_at=func.now())).rowcount != 1:
        raise StaleAttempt(f"call {call_id}: attempt {attempt} was taken over")


def doubt(tx: Transaction, call_id: str) -> None:
    """Write down of an open external call that is to be made again that an earlier attempt may have happened."""
    tx.connection.execute(update(calls).where(calls.c.id == call_id).values(details=DOUBTED))


def open_calls(tx: Transaction, job_id: str) -> list[Call]:
    """Calls that have not ended, in order. Under the job's row lock this is the join's truth."""
    return [call_of(row) for row in _OPEN_CALLS.run(tx, {"of_job": job_id})]


def _of_last_step(job_id: str | ColumnElement[str]) -> ColumnElement[bool]:
    """The calls of a job that may still be open: a step is decided only once all calls before it have ended."""
    last = select(jobs.c.step).where(jobs.c.id == job_id).scalar_subquery()
    return and_(calls.c.job_id == job_id, calls.c.step == last)


def make_due(tx: Transaction, call_ids: Iterable[str], ring_s: float) -> None:
    """Let calls be claimed, and rung again `ring_s` seconds from now should the ring be lost."""
    _CHANGE_CALLS.run(tx, {"due_at": Later(ring_s)}, chosen=list(call_ids))


def take_back(tx: Transaction, call_ids: Sequence[str]) -> None:
    """Let pending calls that nobody claimed yet not be claimed any more, until they are made due again; without a pause then."""
    if call_ids:
        pending = update(calls).where(calls.c.id.in_(call_ids), calls.c.status == CallStatus.PENDING)
        tx.connection.execute(pending.values(due_at=None, not_before=None))


def hold(tx: Transaction, call_id: str, why: Held) -> None:
    """Let a pending call wait for a person."""
    held = {"held": why.value, "due_at": None}
    tx.connection.execute(update(calls).where(calls.c.id == call_id, calls.c.status == CallStatus.PENDING).values(held))


def let_go(tx: Transaction, call_id: str, values: Mapping[str, Any] | None = None) -> None:
    """Let a held call be made due again, changed as given before it runs."""
    tx.connection.execute(update(calls).where(calls.c.id == call_id, calls.c.held.is_not(None)).values({**(values or {}), "held": None}))


def settle_held(tx: Transaction, call_id: str, *, ok: bool, preview: str, details: Mapping[str, Any]) -> None:
    """Write the outcome of a held call that no executor runs (any more)."""
    status = CallStatus.SUCCEEDED if ok else CallStatus.FAILED
    values = {"status": status.value, "ok": ok, "preview": preview, "details": dict(details), "held": None, "due_at": None}
    held = (calls.c.id == call_id) & calls.c.held.is_not(None)
    tx.connection.execute(update(calls).where(held).values(values | {"finished_at": func.now()}))


def cancel_calls(tx: Transaction, call_ids: Iterable[str], values: Mapping[str, Any] | None = None) -> None:
    """End calls that nobody living works on; `values`: what more is written of them."""
    chosen = list(call_ids)
    if chosen:
        changes = {**(values or {}), "status": CallStatus.CANCELLED.value, "owner": None, "lease_until": None, "due_at": None, "held": None}
        _CHANGE_CALLS.run(tx, changes | {"finished_at": NOW}, chosen=chosen)


def running_alive(tx: Transaction, job_id: str) -> set[str]:
    """Ids of the job's calls that a living executor works on."""
    return set(
        tx.connection.execute(
            select(calls.c.id).where(_of_last_step(job_id), calls.c.status == CallStatus.RUNNING, ~unclaimed(calls))
        ).scalars()
    )


def owners(tx: Transaction, job_id: str) -> set[int]:
    """Keys of the processes that work on the job's calls, dead ones included."""
    return set(tx.connection.execute(select(calls.c.owner).where(calls.c.job_id == job_id, calls.c.owner.is_not(None))).scalars())


def add_artifact(tx: Transaction, artifact: Mapping[str, Any]) -> None:
    """Insert an artifact."""
    tx.connection.execute(insert(artifacts).values(dict(artifact)))


def artifact_page(tx: Transaction, job_id: str, *, limit: int, after: str | None = None) -> list[Artifact]:
    """A job's artifacts, oldest first, those after the artifact `after`."""
    statement = select(artifacts).where(artifacts.c.job_id == job_id)
    if after is not None:
        statement = statement.where(artifacts.c.id > after)
    return [artifact_of(row) for row in tx.connection.execute(statement.order_by(artifacts.c.id).limit(limit))]


def artifact(tx: Transaction, artifact_id: str, *, tenant_id: str) -> Artifact:
    """One artifact of a tenant. Raises `NotFound`."""
    row = tx.connection.execute(select(artifacts).where(artifacts.c.id == artifact_id, artifacts.c.tenant_id == tenant_id)).one_or_none()
    if row is None:
        raise NotFound(f"There is no artifact {artifact_id!r}.", param="artifact_id")
    return artifact_of(row)


def artifact_count(tx: Transaction, job_id: str) -> int:
    """How many artifacts a job has."""
    return int(tx.connection.execute(select(func.count()).select_from(artifacts).where(artifacts.c.job_id == job_id)).scalar_one())
