"""Claiming rows of `jobs` and `calls`: compare-and-set with a fencing token, a lease and the owner's presence."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, Literal

from sqlalchemy import ColumnElement, Row, Table, and_, func, or_, select, text, tuple_, update

from dualtrack.db.engine import Transaction
from dualtrack.db.presence import DEAD_OWNER_SQL
from dualtrack.db.tables import calls, jobs
from dualtrack.domain.lifecycle import CallStatus, JobStatus, Phase
from dualtrack.domain.limits import PlatformLimits

Kind = Literal["jobs", "calls"]
_TABLES: Final = {"jobs": jobs, "calls": calls}
BATCH: Final = 500
"""Rows that one look of the scheduler takes up."""


def unclaimed(table: Table) -> ColumnElement[bool]:
    """Nobody owns the row, or its lease ran out, or its owner is dead."""
    return or_(table.c.owner.is_(None), table.c.lease_until < func.now(), text(DEAD_OWNER_SQL.format(owner=f"{table.name}.owner")))


def _workable(kind: Kind) -> ColumnElement[bool]:
    if kind == "jobs":
        return and_(jobs.c.phase == Phase.PLAN, jobs.c.status.in_([JobStatus.QUEUED, JobStatus.RUNNING]))
    return and_(calls.c.status.in_([CallStatus.PENDING, CallStatus.RUNNING]), calls.c.due_at.is_not(None))


def claim(tx: Transaction, kind: Kind, row_id: str, owner: int, limits: PlatformLimits) -> Row[Any] | None:
    """Take the row over with the next fencing token; None when it is done, not due to us, or somebody living works on it."""
    table = _TABLES[kind]
    values: dict[str, Any] = {
        "attempt": table.c.attempt + 1,
        "tries": table.c.tries + 1,
        "owner": owner,
        "lease_until": func.now() + timedelta(seconds=limits.lease_s),
        "due_at": func.now() + timedelta(seconds=limits.lease_s),
        "rings": 0,
        "started_at": func.coalesce(table.c.started_at, func.now()),
    }
    if kind == "calls":
        values["status"] = CallStatus.RUNNING.value
    statement = update(table).where(table.c.id == row_id, _workable(kind), unclaimed(table)).values(values).returning(*table.c)
    return tx.connection.execute(statement).one_or_none()


def renew(tx: Transaction, kind: Kind, held: list[tuple[str, int]], limits: PlatformLimits) -> dict[str, bool]:
    """Extend the leases of (id, attempt); for each still ours, whether its job has been told to stop. A missing id is lost.

    A row that another transaction is just changing keeps its lease as it is until the next beat: heartbeats never wait.
    """
    table = _TABLES[kind]
    ours = and_(tuple_(table.c.id, table.c.attempt).in_(held), table.c.owner.is_not(None))
    free = select(table.c.id).where(ours).with_for_update(skip_locked=True)
    until = func.now() + timedelta(seconds=limits.lease_s)
    tx.connection.execute(update(table).where(table.c.id.in_(free)).values(lease_until=until, due_at=until))
    statement = select(table.c.id, jobs.c.stopping).where(ours)
    if kind == "calls":
        statement = statement.where(jobs.c.id == calls.c.job_id)
    return {row.id: row.stopping is not None for row in tx.connection.execute(statement)}


def ring_due(tx: Transaction, kind: Kind, limits: PlatformLimits) -> list[Row[Any]]:
    """Rows that are due and unclaimed, at most `BATCH`: (id, priority, traceparent).

    Their next ring is pushed back, doubling up to ten times. Two schedulers at once take different rows.
    """
    table = _TABLES[kind]
    owner_gone = and_(table.c.owner.is_not(None), unclaimed(table))
    due = (
        select(table.c.id)
        .where(_workable(kind), or_(and_(table.c.due_at <= func.now(), unclaimed(table)), owner_gone))
        .order_by(table.c.due_at)
        .limit(BATCH)
        .with_for_update(skip_locked=True)
    )
    pause = func.make_interval(0, 0, 0, 0, 0, 0, limits.ring_s * func.least(10.0, func.power(2.0, table.c.rings)))
    priority = jobs.c.priority if kind == "jobs" else select(jobs.c.priority).where(jobs.c.id == calls.c.job_id).scalar_subquery()
    # A dead owner's claim is given up here, so that the next ring waits its turn and a late writer finds itself fenced.
    values: dict[str, Any] = {"due_at": func.now() + pause, "rings": func.least(table.c.rings + 1, 10), "owner": None, "lease_until": None}
    if kind == "calls":
        values["status"] = CallStatus.PENDING.value
    statement = (
        update(table).where(table.c.id.in_(due)).values(values).returning(table.c.id, priority.label("priority"), table.c.traceparent)
    )
    return list(tx.connection.execute(statement).all())
