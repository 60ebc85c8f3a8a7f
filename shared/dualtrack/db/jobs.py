"""The jobs table: creating, advancing, ending. Every status change goes with its event, appended by the caller in the same transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import Update as UpdateStatement
from sqlalchemy import and_, case, func, insert, select
from sqlalchemy.sql.base import Executable

from dualtrack.db import budgets
from dualtrack.db.claims import unclaimed
from dualtrack.db.engine import Transaction
from dualtrack.db.prepared import NOW, Plus, Prepared, Update, given
from dualtrack.db.rows import AnyRow, job_of
from dualtrack.db.tables import calls, jobs
from dualtrack.domain.errors import NotFound, StaleAttempt
from dualtrack.domain.job import Job, JobSpec
from dualtrack.domain.lifecycle import TERMINAL, CallStatus, JobStatus, Phase
from dualtrack.domain.usage import Usage
from dualtrack.domain.waiting import Hold

_ONE: Final = Prepared(lambda: select(jobs).where(jobs.c.id == given("job")))
_LOCKED: Final = Prepared(lambda: select(jobs).where(jobs.c.id == given("job")).with_for_update())
_CHANGE: Final = Update(jobs, jobs.c.id == given("job"))
_CHANGE_WAIT: Final = Update(jobs, jobs.c.id == given("job"), jobs.c.waiting_until)


def _charging(change: UpdateStatement) -> Executable:
    """A change of a job, and what its key used."""
    found = change.cte("changed")
    return select(*found.c).add_cte(budgets.adding_spent(found).cte("spent"))


_LIVE: Final = and_(jobs.c.id == given("job"), jobs.c.finished_at.is_(None))
_ASKED: Final = (jobs.c.stopping, jobs.c.hold, jobs.c.messages)
_CHARGE: Final = Update(jobs, _LIVE, *_ASKED)
_CHARGE_KEYED: Final = Update(jobs, _LIVE, *_ASKED, around=_charging)
_PROGRESS: Final = Prepared(
    lambda: select(
        jobs.c.step, case((jobs.c.summary != "", jobs.c.compacted_through), else_=0).label("summarised_through"), jobs.c.messages
    ).where(jobs.c.id == given("job"))
)
_START: Final = Update(jobs, and_(jobs.c.id == given("job"), jobs.c.status == JobStatus.QUEUED.value))
_OURS: Final = and_(_LIVE, jobs.c.attempt == given("of_attempt"), jobs.c.owner.is_not(None))
_RELEASE: Final = Update(jobs, _OURS, *_ASKED)
_RELEASE_KEYED: Final = Update(jobs, _OURS, *_ASKED, around=_charging)


SOON: Final = func.coalesce(jobs.c.not_before, func.now())
"""`not_before` of a waiting job at which the scheduler is to look with its next tick, unless the time for it is set."""


def create(
    tx: Transaction,
    *,
    job_id: str,
    tenant_id: str,
    spec: JobSpec,
    workspace: str | None,
    traceparent: str,
    request_traceparent: str,
    ring_s: float,
    key_id: str | None = None,
    lineage: Mapping[str, Any] | None = None,
) -> None:
    """Insert a queued job, due for a ring by the scheduler `ring_s` seconds from now should the first ring be lost.

    `lineage`: the columns that say what job it comes from.
    """
    tx.connection.execute(
        insert(jobs).values(
            id=job_id,
            tenant_id=tenant_id,
            spec=spec.model_dump(mode="json"),
            metadata=spec.metadata,
            agent_name=spec.agent.name,
            priority=spec.priority,
            status=JobStatus.QUEUED.value,
            phase=Phase.PLAN.value,
            workspace=workspace,
            first_workspace=workspace,
            key_id=key_id,
            traceparent=traceparent,
            request_traceparent=request_traceparent,
            due_at=func.now() + timedelta(seconds=ring_s),
            deadline_at=func.now() + timedelta(seconds=spec.limits.wall_time_s),
            **(lineage or {}),
        )
    )


def get(tx: Transaction, job_id: str, *, tenant_id: str | None = None, lock: bool = False) -> Job:
    """A job; within a tenant where one is given. `lock` holds its row until the end of the transaction.

    Raises:
        NotFound: no such job, or another tenant's.
    """
    row = (_LOCKED if lock else _ONE).run(tx, {"job": job_id}).fetchone()
    if row is None or tenant_id not in {None, row.tenant_id}:
        raise NotFound(f"There is no job {job_id!r}.", param="job_id")
    return job_of(row)


def start(tx: Transaction, job_id: str) -> None:
    """Queued → running."""
    _START.run(tx, {"status": JobStatus.RUNNING.value}, job=job_id)


class Asked(NamedTuple):
    """What a job was asked for while somebody worked on it."""

    stopping: JobStatus | None
    """the end that it was told to come to"""
    hold: Hold | None
    """to start nothing more"""
    messages: int
    """how many messages it was sent by now"""


def release(
    tx: Transaction, job_id: str, attempt: int, values: Mapping[str, Any], *, usage: Usage | None = None, key_id: str | None = None
) -> Asked:
    """Give a planner's claim back and write what it did; what the job was asked for meanwhile.

    `usage` is added to the job's, and to what the key `key_id` used today.

    Raises:
        StaleAttempt: a newer attempt owns the job, or it has ended.
    """
    changes: dict[str, Any] = {"owner": None, "lease_until": None, **values}
    if usage is not None:
        changes |= _added(usage)
    row = _charged(tx, _RELEASE, _RELEASE_KEYED, changes, usage, key_id, job_id, of_attempt=attempt)
    if row is None:
        raise StaleAttempt(f"job {job_id}: attempt {attempt} was taken over")
    return Asked(JobStatus(row.stopping) if row.stopping else None, Hold(row.hold) if row.hold else None, row.messages)


def charge(tx: Transaction, job_id: str, usage: Usage, *, key_id: str | None = None) -> bool:
    """Add to what a live job has used, whoever owns it, and to what its key used today.

    False where it has ended: its sums are final, and only its key is charged.
    """
    if _charged(tx, _CHARGE, _CHARGE_KEYED, _added(usage), usage, key_id, job_id) is not None:
        return True
    if key_id is not None and usage:
        tx.connection.execute(budgets.adding(key_id, budgets.shard_of(job_id), usage))
    return False


def _charged(
    tx: Transaction,
    plain: Update,
    keyed: Update,
    changes: Mapping[str, Any],
    usage: Usage | None,
    key_id: str | None,
    job_id: str,
    **keys: int,
) -> AnyRow | None:
    """Change a job and, where that found it, add to what its key used: one statement for both, since this is every step's way."""
    if key_id is None or not usage:
        return plain.run(tx, changes, job=job_id, **keys).fetchone()
    return keyed.run(tx, changes, job=job_id, **keys, **budgets.spent(key_id, job_id, usage)).fetchone()


class Progress(NamedTuple):
    """How far a job has come."""

    step: int
    summarised_through: int
    messages: int


def progress(tx: Transaction, job_id: str) -> Progress | None:
    """How far a job has come; None where there is none."""
    row = _PROGRESS.run(tx, {"job": job_id}).fetchone()
    return None if row is None else Progress(*row)


def _added(usage: Usage) -> dict[str, Plus]:
    return {
        "input_tokens": Plus(usage.input_tokens),
        "output_tokens": Plus(usage.output_tokens),
        "cached_tokens": Plus(usage.cached_tokens),
        "cost_usd": Plus(usage.cost_usd),
    }


def change(tx: Transaction, job_id: str, values: Mapping[str, Any]) -> None:
    """Change columns of a job whose row lock the caller holds."""
    _CHANGE.run(tx, values, job=job_id)


def change_returning_wait(tx: Transaction, job_id: str, values: Mapping[str, Any]) -> datetime:
    """Change columns of a job whose row lock the caller holds; when its wait ends by itself."""
    row = _CHANGE_WAIT.run(tx, values, job=job_id).fetchone()
    if row is None:
        raise NotFound(f"There is no job {job_id!r}.", param="job_id")
    until: datetime = row.waiting_until
    return until


def end_wait(tx: Transaction, job_id: str, status: JobStatus, values: Mapping[str, Any]) -> None:
    """A waiting job (its row locked) goes on; its deadline moves by the time it waited."""
    waited = func.clock_timestamp() - jobs.c.waiting_since
    over = {"status": status.value, "reason": None, "message": None, "waiting_since": None, "waiting_until": None, "not_before": None}
    change(tx, job_id, {**over, "deadline_at": jobs.c.deadline_at + waited, **values})


def set_limits(tx: Transaction, job_id: str, limits: Mapping[str, Any], *, more_s: int) -> None:
    """Write a job's limits (its row locked), and move its deadline by `more_s` seconds."""
    change(tx, job_id, {"limits": dict(limits), "deadline_at": jobs.c.deadline_at + timedelta(seconds=more_s)})


def claimed(tx: Transaction, job_id: str) -> bool:
    """Whether a living planner is at work on the job."""
    return bool(tx.connection.execute(select(~unclaimed(jobs)).where(jobs.c.id == job_id)).scalar_one())


def end(tx: Transaction, job_id: str, status: JobStatus, *, reason: str | None, message: str | None, answer: str | None) -> None:
    """Write a final status, at rest: no phase, no owner, nothing due."""
    change(
        tx,
        job_id,
        {
            "status": status.value,
            "phase": Phase.NONE.value,
            "reason": reason,
            "message": message,
            "answer": answer,
            "owner": None,
            "lease_until": None,
            "due_at": None,
            "hold": None,
            "waiting_since": None,
            "waiting_until": None,
            "finished_at": NOW,
        },
    )


def past_deadline(tx: Transaction, limit: int, but: Collection[str]) -> list[str]:
    """Ids of jobs at work whose wall time is over and that were not told to stop yet, the longest overdue first."""
    working = (jobs.c.finished_at.is_(None), jobs.c.waiting_since.is_(None), jobs.c.stopping.is_(None), jobs.c.hold.is_(None))
    statement = select(jobs.c.id).where(jobs.c.deadline_at <= func.now(), *working, jobs.c.id.not_in(but))
    return list(tx.connection.execute(statement.order_by(jobs.c.deadline_at).limit(limit)).scalars())


def past_wait(tx: Transaction, limit: int, but: Collection[str]) -> list[str]:
    """Ids of jobs that have waited for too long, the longest overdue first."""
    statement = select(jobs.c.id).where(jobs.c.waiting_until <= func.now(), jobs.c.stopping.is_(None), jobs.c.id.not_in(but))
    return list(tx.connection.execute(statement.order_by(jobs.c.waiting_until).limit(limit)).scalars())


def stopped(tx: Transaction, limit: int, but: Collection[str]) -> list[str]:
    """Ids of jobs that were told to stop, have not ended, and that no living executor works on: whoever should have ended them is dead."""
    working = select(calls.c.id).where(calls.c.job_id == jobs.c.id, calls.c.status == CallStatus.RUNNING, ~unclaimed(calls)).exists()
    statement = select(jobs.c.id).where(jobs.c.stopping.is_not(None), jobs.c.finished_at.is_(None), ~working, jobs.c.id.not_in(but))
    return list(tx.connection.execute(statement.limit(limit)).scalars())


def lock(tx: Transaction, job_id: str) -> Job | None:
    """The job with its row locked, without waiting: None where somebody else holds it just now. Raises `RecordUnreadable`."""
    row = tx.connection.execute(select(jobs).where(jobs.c.id == job_id).with_for_update(skip_locked=True)).one_or_none()
    return None if row is None else job_of(row)


def lock_live(tx: Transaction, job_id: str) -> bool:
    """Lock a job's row, whatever is in it; False where there is none, or it has ended."""
    statement = select(jobs.c.id).where(jobs.c.id == job_id, jobs.c.finished_at.is_(None)).with_for_update()
    return tx.connection.execute(statement).first() is not None


def counts(tx: Transaction) -> dict[str, int]:
    """Jobs by live status, for metrics."""
    live = [status.value for status in JobStatus if status not in TERMINAL]
    rows = tx.connection.execute(select(jobs.c.status, func.count()).where(jobs.c.status.in_(live)).group_by(jobs.c.status))
    return dict.fromkeys(live, 0) | {row[0]: row[1] for row in rows}
