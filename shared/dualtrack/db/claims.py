"""Claiming rows of `jobs` and `calls`: compare-and-set with a fencing token, a lease and the owner's presence."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, Literal

from sqlalchemy import Boolean, ColumnElement, Interval, Row, Select, Table, and_, func, or_, select, text, tuple_, update
from sqlalchemy.sql.base import Executable

from dualtrack.db.engine import Transaction
from dualtrack.db.prepared import Prepared, given
from dualtrack.db.presence import DEAD_OWNER_SQL
from dualtrack.db.rows import AnyRow
from dualtrack.db.tables import api_keys, calls, jobs
from dualtrack.domain.errors import NotFound
from dualtrack.domain.lifecycle import CallStatus, JobStatus, Phase
from dualtrack.domain.limits import SUSPECT_TRIES, PlatformLimits

Kind = Literal["jobs", "calls"]
_TABLES: Final = {"jobs": jobs, "calls": calls}
KEY_LIMITED: Final = (
    select(func.num_nonnulls(api_keys.c.day_tokens, api_keys.c.day_cost_usd) > 0)
    .where(api_keys.c.id == jobs.c.key_id)
    .correlate(jobs)
    .scalar_subquery()
    .label("key_limited")
)
BATCH: Final = 500
"""Rows that one look of the scheduler takes up."""
UNHELD_S: Final = 5.0
"""Longest way of a claim from the database to the thread that works on it; a slower one may lose it, which does no harm."""
_NOW: Final = func.clock_timestamp()  # now() is when the transaction began, and it may have waited for a lock since


def unclaimed(table: Table) -> ColumnElement[bool]:
    """Nobody owns the row, or its lease ran out, or its owner is dead."""
    return or_(table.c.owner.is_(None), orphaned(table))


def orphaned(table: Table) -> ColumnElement[bool]:
    """Somebody owns the row whose lease ran out, or who is dead."""
    dead = text(DEAD_OWNER_SQL.format(owner=f"{table.name}.owner"))
    return and_(table.c.owner.is_not(None), or_(table.c.lease_until < _NOW, dead))


def _workable(kind: Kind) -> ColumnElement[bool]:
    if kind == "jobs":
        return and_(jobs.c.phase == Phase.PLAN, jobs.c.status.in_([JobStatus.QUEUED, JobStatus.RUNNING]))
    return and_(calls.c.status.in_([CallStatus.PENDING, CallStatus.RUNNING]), calls.c.due_at.is_not(None))


def _claimable(kind: Kind) -> ColumnElement[bool]:
    table = _TABLES[kind]
    return and_(_workable(kind), or_(table.c.not_before.is_(None), table.c.not_before <= _NOW), unclaimed(table))


def claim(tx: Transaction, kind: Kind, row_id: str, owner: int, limits: PlatformLimits, *, suspects: bool = True) -> AnyRow | None:
    """Take the row over with the next fencing token; None when it is done, pausing after a failure, or somebody living works on it.

    `suspects`: one that was tried `SUSPECT_TRIES` times without a record as well.

    A job's row has two more columns: `key_limited`, whether its key has a limit of its own on what it may use in a day, and `time_over`,
    whether its wall time is used up.
    """
    lease = timedelta(seconds=limits.lease_s)
    return _CLAIM[kind].run(tx, {"row_id": row_id, "claimant": owner, "lease": lease, "suspects": suspects}).fetchone()


def _claim_statement(kind: Kind) -> Executable:
    table = _TABLES[kind]
    until = _NOW + given("lease", Interval())
    values: dict[str, Any] = {
        "attempt": table.c.attempt + 1,
        "tries": table.c.tries + 1,
        "owner": given("claimant"),
        "lease_until": until,
        "due_at": until,
        "not_before": None,
        "rings": 0,
        "started_at": func.coalesce(table.c.started_at, func.now()),
    }
    if kind == "calls":
        values["status"] = CallStatus.RUNNING.value
    wanted = or_(given("suspects", Boolean()), table.c.tries < SUSPECT_TRIES)
    statement = update(table).where(table.c.id == given("row_id"), _claimable(kind), wanted).values(values).returning(*table.c)
    if kind == "jobs":
        statement = statement.returning(KEY_LIMITED, (jobs.c.deadline_at <= _NOW).label("time_over"))
    return statement


_CLAIM: Final[dict[Kind, Prepared]] = {
    "jobs": Prepared(lambda: _claim_statement("jobs")),
    "calls": Prepared(lambda: _claim_statement("calls")),
}


def give_back(tx: Transaction, kind: Kind, row_id: str, attempt: int) -> None:
    """Undo a claim under which nothing was done, and that is still this attempt's: the row is due, as it was."""
    table = _TABLES[kind]
    ours = and_(table.c.id == row_id, table.c.attempt == attempt, table.c.owner.is_not(None))
    values: dict[str, Any] = {"owner": None, "lease_until": None, "due_at": _NOW, "tries": table.c.tries - 1}
    # The number may be given again, since nobody has it; that of a call is in an event.
    values |= {"attempt": table.c.attempt - 1} if kind == "jobs" else {"status": CallStatus.PENDING.value}
    tx.connection.execute(update(table).where(ours).values(values))


def suspect(tx: Transaction, kind: Kind, row_id: str) -> bool:
    """Whether the row could be claimed by a process that takes suspects, and by no other. Raises `NotFound`."""
    table = _TABLES[kind]
    found = tx.connection.execute(select(and_(_claimable(kind), table.c.tries >= SUSPECT_TRIES)).where(table.c.id == row_id)).scalar()
    if found is None:
        raise NotFound(f"There is no row {row_id!r} in {kind}.")
    return bool(found)


def put_off(tx: Transaction, kind: Kind, row_id: str, pause_s: float) -> int | None:
    """Count a claim that failed before it was one, and let the next one wait; how many there were. None: it can't be claimed any more."""
    table = _TABLES[kind]
    due = _NOW + timedelta(seconds=pause_s)
    statement = update(table).where(table.c.id == row_id, _claimable(kind)).values(tries=table.c.tries + 1, due_at=due, not_before=due)
    tries: int | None = tx.connection.execute(statement.returning(table.c.tries)).scalar_one_or_none()
    return tries


def renew(tx: Transaction, kind: Kind, held: list[tuple[str, int]], limits: PlatformLimits) -> dict[tuple[str, int], bool]:
    """Extend the leases of (id, attempt); for each still ours, whether its job has been told to stop. A missing one is lost.

    A row that another transaction is just changing keeps its lease as it is until the next beat: heartbeats never wait.
    """
    table = _TABLES[kind]
    ours = and_(tuple_(table.c.id, table.c.attempt).in_(held), table.c.owner.is_not(None))
    free = select(table.c.id).where(ours).with_for_update(skip_locked=True)
    until = _NOW + timedelta(seconds=limits.lease_s)
    tx.connection.execute(update(table).where(table.c.id.in_(free)).values(lease_until=until, due_at=until))
    statement = select(table.c.id, table.c.attempt, jobs.c.stopping).where(ours)
    if kind == "calls":
        statement = statement.where(jobs.c.id == calls.c.job_id)
    return {(row.id, row.attempt): row.stopping is not None for row in tx.connection.execute(statement)}


def disown(tx: Transaction, kind: Kind, owner: int, held: list[tuple[str, int]], limits: PlatformLimits) -> None:
    """End the leases of what is claimed in the name of `owner` although it holds only `held`, (id, attempt).

    Such a claim was committed, and its answer lost with the connection. One that is younger than `UNHELD_S` may be on its way to a thread.
    """
    table = _TABLES[kind]
    old = table.c.lease_until < _NOW + timedelta(seconds=limits.lease_s - UNHELD_S)
    unheld = [tuple_(table.c.id, table.c.attempt).not_in(held)] if held else []
    free = select(table.c.id).where(table.c.owner == owner, old, *unheld).with_for_update(skip_locked=True)
    tx.connection.execute(update(table).where(table.c.id.in_(free)).values(lease_until=_NOW))


def free_orphans(tx: Transaction, kind: Kind) -> list[Row[Any]]:
    """Give up the claims of dead owners and lapsed leases, at most `BATCH`, and make their rows due: (id, priority, traceparent).

    The attempt number stays, but without an owner a late writer finds itself refused. Two schedulers at once take different rows.
    """
    table = _TABLES[kind]
    values: dict[str, Any] = {"due_at": _NOW, "owner": None, "lease_until": None}
    if kind == "calls":
        values["status"] = CallStatus.PENDING.value
    return _taken(tx, kind, select(table.c.id).where(_workable(kind), orphaned(table)), values, BATCH)


def ring_due(tx: Transaction, kind: Kind, limits: PlatformLimits, most: int) -> list[Row[Any]]:
    """Rows that are due and that nobody claimed, at most `most`: (id, priority, traceparent).

    Their next ring is pushed back, doubling up to ten times. Two schedulers at once take different rows.
    """
    table = _TABLES[kind]
    pause = pause_after(table.c.rings, limits)
    due = select(table.c.id).where(_workable(kind), table.c.due_at <= _NOW, table.c.owner.is_(None)).order_by(table.c.due_at)
    return _taken(tx, kind, due, {"due_at": _NOW + pause, "rings": func.least(table.c.rings + 1, 10)}, most)


def pause_after(times: ColumnElement[int], limits: PlatformLimits) -> ColumnElement[timedelta]:
    """How long a row that was looked at so often in vain is left alone: the ring's pause, doubling up to ten times that."""
    return func.make_interval(0, 0, 0, 0, 0, 0, limits.ring_s * func.least(10.0, func.power(2.0, times)))


def waiting(tx: Transaction, kind: Kind, job_id: str) -> list[Row[Any]]:
    """What of this job waits for a worker, has no pause and belongs to nobody: (id, priority, traceparent). Nothing is changed."""
    table = _TABLES[kind]
    ready = or_(table.c.not_before.is_(None), table.c.not_before <= _NOW)
    of_job = jobs.c.id == job_id if kind == "jobs" else and_(jobs.c.id == calls.c.job_id, jobs.c.id == job_id)
    statement: Select[Any] = select(table.c.id, jobs.c.priority, table.c.traceparent).where(
        of_job, _workable(kind), ready, table.c.owner.is_(None)
    )
    return list(tx.connection.execute(statement).all())


def _taken(tx: Transaction, kind: Kind, rows: Select[tuple[str]], values: Mapping[str, Any], most: int) -> list[Row[Any]]:
    table = _TABLES[kind]
    chosen = rows.limit(most).with_for_update(skip_locked=True).cte("chosen")  # as a CTE it runs once, so the limit holds
    priority = jobs.c.priority if kind == "jobs" else select(jobs.c.priority).where(jobs.c.id == calls.c.job_id).scalar_subquery()
    statement = update(table).where(table.c.id.in_(select(chosen.c.id))).values(values)
    return list(tx.connection.execute(statement.returning(table.c.id, priority.label("priority"), table.c.traceparent)).all())
