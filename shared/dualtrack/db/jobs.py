"""The jobs table: creating, advancing, ending. Every status change goes with its event, appended by the caller in the same transaction."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, func, insert, select, update

from dualtrack.db.claims import unclaimed
from dualtrack.db.engine import Transaction
from dualtrack.db.rows import job_of
from dualtrack.db.tables import calls, jobs
from dualtrack.domain.errors import NotFound, StaleAttempt
from dualtrack.domain.job import Job, JobSpec
from dualtrack.domain.lifecycle import TERMINAL, CallStatus, JobStatus, Phase
from dualtrack.domain.usage import Usage


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
) -> None:
    """Insert a queued job, due for a ring by the scheduler `ring_s` seconds from now should the first ring be lost."""
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
            traceparent=traceparent,
            request_traceparent=request_traceparent,
            due_at=func.now() + timedelta(seconds=ring_s),
            deadline_at=func.now() + timedelta(seconds=spec.limits.wall_time_s),
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
    if metadata:
        statement = statement.where(jobs.c.metadata.contains(dict(metadata)))
    return [job_of(row) for row in tx.connection.execute(statement.order_by(jobs.c.id.desc()).limit(limit))]


def start(tx: Transaction, job_id: str) -> None:
    """Queued → running."""
    tx.connection.execute(update(jobs).where(jobs.c.id == job_id, jobs.c.status == JobStatus.QUEUED).values(status=JobStatus.RUNNING.value))


def release(tx: Transaction, job_id: str, attempt: int, values: Mapping[str, Any], *, usage: Usage | None = None) -> JobStatus | None:
    """Give a planner's claim back and write what it did; the end that the job was told to come to meanwhile, if any.

    Raises:
        StaleAttempt: a newer attempt owns the job, or it has ended.
    """
    changes: dict[str, Any] = {"owner": None, "lease_until": None, **values}
    if usage is not None:
        changes |= _added(usage)
    row = tx.connection.execute(update(jobs).where(_ours(job_id, attempt)).values(changes).returning(jobs.c.stopping)).one_or_none()
    if row is None:
        raise StaleAttempt(f"job {job_id}: attempt {attempt} was taken over")
    return None if row.stopping is None else JobStatus(row.stopping)


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
            "finished_at": func.now(),
        },
    )


def past_deadline(tx: Transaction, limit: int) -> list[str]:
    """Ids of live jobs whose wall time is over and that were not told to stop yet, the longest overdue first."""
    statement = select(jobs.c.id).where(jobs.c.deadline_at <= func.now(), jobs.c.finished_at.is_(None), jobs.c.stopping.is_(None))
    return list(tx.connection.execute(statement.order_by(jobs.c.deadline_at).limit(limit)).scalars())


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
