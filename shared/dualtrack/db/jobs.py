"""The jobs table: creating, advancing, ending. Every status change goes with its event, appended by the caller in the same transaction."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Row, Update, case, func, insert, select, update

from dualtrack.db import budgets
from dualtrack.db.claims import unclaimed
from dualtrack.db.engine import Transaction
from dualtrack.db.rows import job_of
from dualtrack.db.tables import calls, jobs
from dualtrack.domain.errors import NotFound, StaleAttempt
from dualtrack.domain.job import Job, JobSpec
from dualtrack.domain.lifecycle import TERMINAL, CallStatus, JobStatus, Phase
from dualtrack.domain.usage import Usage
from dualtrack.domain.waiting import Hold


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
    statement = select(jobs).where(jobs.c.id == job_id)
    if tenant_id is not None:
        statement = statement.where(jobs.c.tenant_id == tenant_id)
    if lock:
        statement = statement.with_for_update()
    row = tx.connection.execute(statement).one_or_none()
    if row is None:
        raise NotFound(f"There is no job {job_id!r}.", param="job_id")
    return job_of(row)


def page(
    tx: Transaction,
    tenant_id: str,
    *,
    limit: int,
    before: str | None = None,
    statuses: tuple[JobStatus, ...] = (),
    agent: str | None = None,
    parent_id: str | None = None,
    metadata: Mapping[str, str] | None = None,
) -> list[Job]:
    """A tenant's jobs, newest first, those created before the job `before`, filtered."""
    statement = select(jobs).where(jobs.c.tenant_id == tenant_id)
    if before is not None:
        statement = statement.where(jobs.c.id < before)
    if statuses:
        statement = statement.where(jobs.c.status.in_([status.value for status in statuses]))
    if agent is not None:
        statement = statement.where(jobs.c.agent_name == agent)
    if parent_id is not None:
        statement = statement.where(jobs.c.parent_id == parent_id)
    if metadata:
        statement = statement.where(jobs.c.metadata.contains(dict(metadata)))
    return [job_of(row) for row in tx.connection.execute(statement.order_by(jobs.c.id.desc()).limit(limit))]


def start(tx: Transaction, job_id: str) -> None:
    """Queued → running."""
    tx.connection.execute(update(jobs).where(jobs.c.id == job_id, jobs.c.status == JobStatus.QUEUED).values(status=JobStatus.RUNNING.value))


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
    row = _charged(tx, job_id, update(jobs).where(_ours(job_id, attempt)).values(changes), usage, key_id)
    if row is None:
        raise StaleAttempt(f"job {job_id}: attempt {attempt} was taken over")
    return Asked(JobStatus(row.stopping) if row.stopping else None, Hold(row.hold) if row.hold else None, row.messages)


def charge(tx: Transaction, job_id: str, usage: Usage, *, key_id: str | None = None) -> bool:
    """Add to what a live job has used, whoever owns it, and to what its key used today; False where it has ended: its sums are final."""
    statement = update(jobs).where(jobs.c.id == job_id, jobs.c.finished_at.is_(None)).values(_added(usage))
    return _charged(tx, job_id, statement, usage, key_id) is not None


def _charged(tx: Transaction, job_id: str, change: Update, usage: Usage | None, key_id: str | None) -> Row[Any, Any] | None:
    """Change a job and, where that found it, add to what its key used: one statement for both, since this is every step's way."""
    changed = change.returning(jobs.c.stopping, jobs.c.hold, jobs.c.messages)
    if key_id is None or not usage:
        return tx.connection.execute(changed).one_or_none()
    found = changed.cte("changed")
    spent = budgets.adding(key_id, budgets.shard_of(job_id), usage, where=found).cte("spent")
    row: Row[Any, Any] | None = tx.connection.execute(select(*found.c).add_cte(spent)).one_or_none()
    return row


class Progress(NamedTuple):
    """How far a job has come."""

    step: int
    summarised_through: int


def progress(tx: Transaction, job_id: str) -> Progress | None:
    """How far a job has come; None where there is none."""
    through = case((jobs.c.summary != "", jobs.c.compacted_through), else_=0)
    row = tx.connection.execute(select(jobs.c.step, through).where(jobs.c.id == job_id)).one_or_none()
    return None if row is None else Progress(*row)


def _added(usage: Usage) -> dict[str, ColumnElement[Any]]:
    return {
        "input_tokens": jobs.c.input_tokens + usage.input_tokens,
        "output_tokens": jobs.c.output_tokens + usage.output_tokens,
        "cached_tokens": jobs.c.cached_tokens + usage.cached_tokens,
        "cost_usd": jobs.c.cost_usd + usage.cost_usd,
    }


def _ours(job_id: str, attempt: int) -> ColumnElement[bool]:
    return (jobs.c.id == job_id) & (jobs.c.attempt == attempt) & jobs.c.owner.is_not(None) & jobs.c.finished_at.is_(None)


def change(tx: Transaction, job_id: str, values: Mapping[str, Any]) -> None:
    """Change columns of a job whose row lock the caller holds."""
    tx.connection.execute(update(jobs).where(jobs.c.id == job_id).values(dict(values)))


def change_returning_wait(tx: Transaction, job_id: str, values: Mapping[str, Any]) -> datetime:
    """Change columns of a job whose row lock the caller holds; when its wait ends by itself."""
    statement = update(jobs).where(jobs.c.id == job_id).values(dict(values)).returning(jobs.c.waiting_until)
    until: datetime = tx.connection.execute(statement).scalar_one()
    return until


def end_wait(tx: Transaction, job_id: str, status: JobStatus, values: Mapping[str, Any]) -> None:
    """A waiting job (its row locked) goes on; its deadline moves by the time it waited."""
    waited = func.now() - jobs.c.waiting_since
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
            "finished_at": func.now(),
        },
    )


def past_deadline(tx: Transaction, limit: int) -> list[str]:
    """Ids of jobs at work whose wall time is over and that were not told to stop yet, the longest overdue first."""
    working = (jobs.c.finished_at.is_(None), jobs.c.waiting_since.is_(None), jobs.c.stopping.is_(None), jobs.c.hold.is_(None))
    statement = select(jobs.c.id).where(jobs.c.deadline_at <= func.now(), *working)
    return list(tx.connection.execute(statement.order_by(jobs.c.deadline_at).limit(limit)).scalars())


def past_wait(tx: Transaction, limit: int) -> list[str]:
    """Ids of jobs that have waited for too long, the longest overdue first."""
    statement = select(jobs.c.id).where(jobs.c.waiting_until <= func.now(), jobs.c.stopping.is_(None))
    return list(tx.connection.execute(statement.order_by(jobs.c.waiting_until).limit(limit)).scalars())


def stopped(tx: Transaction, limit: int) -> list[str]:
    """Ids of jobs that were told to stop, have not ended, and that no living executor works on: whoever should have ended them is dead."""
    working = select(calls.c.id).where(calls.c.job_id == jobs.c.id, calls.c.status == CallStatus.RUNNING, ~unclaimed(calls)).exists()
    statement = select(jobs.c.id).where(jobs.c.stopping.is_not(None), jobs.c.finished_at.is_(None), ~working)
    return list(tx.connection.execute(statement.limit(limit)).scalars())


def lock(tx: Transaction, job_id: str) -> Job | None:
    """The job with its row locked, without waiting: None where somebody else holds it just now. Raises `RecordUnreadable`."""
    row = tx.connection.execute(select(jobs).where(jobs.c.id == job_id).with_for_update(skip_locked=True)).one_or_none()
    return None if row is None else job_of(row)


def counts(tx: Transaction) -> dict[str, int]:
    """Jobs by live status, for metrics."""
    live = [status.value for status in JobStatus if status not in TERMINAL]
    rows = tx.connection.execute(select(jobs.c.status, func.count()).where(jobs.c.status.in_(live)).group_by(jobs.c.status))
    return dict.fromkeys(live, 0) | {row[0]: row[1] for row in rows}
