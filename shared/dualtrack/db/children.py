"""Families of jobs: who belongs to one, who waits for whom, whose end is not known to its parent, who is out of step with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from pydantic import ValidationError
from sqlalchemy import Row, and_, func, or_, select, update

from dualtrack.db import claims
from dualtrack.db.engine import Transaction
from dualtrack.db.rows import usage_of
from dualtrack.db.tables import USAGE_COLUMNS, calls, jobs
from dualtrack.domain.budgets import Member, Spent
from dualtrack.domain.errors import RecordUnreadable
from dualtrack.domain.family import AwaitedChild, Family
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import TERMINAL, CallStatus, JobStatus
from dualtrack.domain.limits import FAMILY_JOBS, LARGEST, STORED, JobLimits, PlatformLimits
from dualtrack.domain.step import CHILD
from dualtrack.domain.usage import Usage
from dualtrack.domain.waiting import Held, Hold

_FAMILIES: Final = 0x64746661
"""Class of the advisory locks of families ("dtfa"): of those with two numbers, which nothing else here takes."""
_PARENT: Final = jobs.alias("parent")
_CHILD: Final = jobs.alias("child")
_UNTOLD: Final = (
    calls.c.held == Held.CHILD,
    jobs.c.parent_call_id == calls.c.id,
    jobs.c.finished_at.is_not(None),
    or_(calls.c.not_before.is_(None), calls.c.not_before <= func.clock_timestamp()),
)
"""A child that has ended, and a call that still waits for it and is not left alone."""


def count(tx: Transaction, parent_id: str) -> int:
    """How many children a job has, the ended ones included."""
    return int(tx.connection.execute(select(func.count()).select_from(jobs).where(jobs.c.parent_id == parent_id)).scalar_one())


def unstarted(tx: Transaction, parent_id: str) -> list[str]:
    """Ids of a job's children that no planner has claimed yet."""
    queued = (jobs.c.parent_id == parent_id, jobs.c.finished_at.is_(None), jobs.c.status == JobStatus.QUEUED.value)
    return list(tx.connection.execute(select(jobs.c.id).where(*queued).order_by(jobs.c.id)).scalars())


def lock_family(tx: Transaction, root_id: str) -> None:
    """Let nobody else who does the same act for this family until the end of the transaction.

    No row is locked: whoever holds this waits for nothing after it, so rows of the family may be held before, and there is no circle.
    """
    tx.connection.execute(select(func.pg_advisory_xact_lock(_FAMILIES, func.hashtext(root_id))))


def family(tx: Transaction, root_id: str) -> list[Member]:
    """All jobs of a family, what they used, and which of them a planner has claimed.

    One whose limits can't be read is bounded by those of the jobs above it. Raises `RecordUnreadable` where that is the root.
    """
    columns: tuple[Any, ...] = (
        jobs.c.id,
        jobs.c.parent_id,
        jobs.c.step,
        func.coalesce(jobs.c.limits, jobs.c.spec["limits"]).label("limits"),
        jobs.c.owner.is_not(None).label("deciding"),
    )
    counts = [jobs.c[name] for name in USAGE_COLUMNS]
    rows = tx.connection.execute(select(*columns, *counts).where(or_(jobs.c.id == root_id, jobs.c.root_id == root_id)))
    read: dict[str, JobLimits] = {}  # most of a family have the same limits
    found = []
    for row in rows:
        text = str(row.limits)
        if text not in read:
            read[text] = _limits_of(row, root_id)
        found.append(Member(row.id, row.parent_id, read[text], Spent(row.step, Usage(*row[-4:])), row.deciding))
    return found


def _limits_of(row: Row[Any], root_id: str) -> JobLimits:
    try:
        return JobLimits.model_validate(row.limits, extra="ignore", context=STORED)
    except ValidationError as error:
        if row.id == root_id:
            raise RecordUnreadable(f"The limits of job {root_id} can't be read by this release: {error.errors()[0]['msg']}.") from error
        return JobLimits.model_validate(LARGEST)


def below(tx: Transaction, job: Job, *, most: int = FAMILY_JOBS) -> Family:
    """A job with what all jobs below it came to, of which at most `most` are read."""
    columns = ("id", "status", "step", *USAGE_COLUMNS)
    found = select(*(jobs.c[name] for name in columns)).where(jobs.c.parent_id == job.id).cte("below", recursive=True)
    found = found.union_all(select(*(_CHILD.c[name] for name in columns)).where(_CHILD.c.parent_id == found.c.id))
    read = select(found).limit(most + 1).subquery()  # PostgreSQL goes no further down than this asks for
    counted = select(read).limit(most).subquery()
    live = counted.c.status.not_in([status.value for status in TERMINAL])
    row = tx.connection.execute(
        select(
            func.count().label("jobs"),
            func.count().filter(live).label("live"),
            func.count().filter(counted.c.status == JobStatus.WAITING.value).label("waiting"),
            func.coalesce(func.sum(counted.c.step), 0).label("steps"),
            *(func.coalesce(func.sum(counted.c[name]), 0).label(name) for name in USAGE_COLUMNS),
            select(func.count() <= most).select_from(read).scalar_subquery().label("complete"),
        )
    ).one()
    usage = usage_of(row)
    whole = Usage(int(usage.input_tokens), int(usage.output_tokens), int(usage.cached_tokens), usage.cost_usd)
    return Family(row.jobs, row.live, row.waiting, Spent(job.step + int(row.steps), job.usage + whole), row.complete)


def awaited(tx: Transaction, job_ids: Sequence[str]) -> dict[str, list[AwaitedChild]]:
    """Of these jobs, those that run with nothing at work but children: for which they wait, in the order of the calls."""
    columns = (calls.c.id, calls.c.job_id, calls.c.wave, calls.c.held, calls.c.started_at)
    child = (_CHILD.c.id.label("child_id"), _CHILD.c.status.label("child_status"), _CHILD.c.reason, _CHILD.c.message)
    joined = calls.join(jobs, jobs.c.id == calls.c.job_id).outerjoin(_CHILD, _CHILD.c.parent_call_id == calls.c.id)
    still_open = (calls.c.step == jobs.c.step, calls.c.finished_at.is_(None))
    running = (jobs.c.id.in_(job_ids), jobs.c.status == JobStatus.RUNNING.value)
    statement = select(*columns, *child).select_from(joined).where(*running, *still_open).order_by(calls.c.job_id, calls.c.position)
    by_job = defaultdict[str, list[Any]](list)
    for row in tx.connection.execute(statement):
        by_job[row.job_id].append(row)
    found = {}
    for job_id, rows in by_job.items():
        wave = [row for row in rows if row.wave == rows[0].wave]  # what comes after it can't begin either
        if all(row.held == Held.CHILD and row.child_id is not None for row in wave):
            found[job_id] = [
                AwaitedChild(row.child_id, row.id, row.started_at, JobStatus(row.child_status), row.reason, row.message) for row in wave
            ]
    return found


def untold(tx: Transaction, most: int, busy: Collection[str]) -> list[str]:
    """Ids of jobs, at most `most`, with calls that wait for children which have ended: new ones first, then those left alone for longest.

    Without those of `busy`, and what is left alone now.
    """
    first = func.min(func.coalesce(calls.c.not_before, func.to_timestamp(0)))
    statement = select(calls.c.job_id).where(*_UNTOLD, calls.c.job_id.not_in(busy)).group_by(calls.c.job_id).order_by(first)
    return list(tx.connection.execute(statement.limit(most)).scalars())


def untold_of(tx: Transaction, parent_id: str) -> list[str]:
    """Ids of the children of a job that have ended and for which its calls still wait, in the order of their ends."""
    statement = select(jobs.c.id).where(*_UNTOLD, calls.c.job_id == parent_id)
    return list(tx.connection.execute(statement.order_by(jobs.c.finished_at)).scalars())


def put_off(tx: Transaction, child_ids: Sequence[str], limits: PlatformLimits) -> None:
    """Leave the ends of those children alone for a while, where they are not told yet; longer each time."""
    theirs = (calls.c.held == Held.CHILD, calls.c.id.in_(select(jobs.c.parent_call_id).where(jobs.c.id.in_(child_ids))))
    later = func.clock_timestamp() + claims.pause_after(calls.c.rings, limits)
    tx.connection.execute(update(calls).where(*theirs).values(not_before=later, rings=func.least(calls.c.rings + 1, 10)))


def end_of(tx: Transaction, child_id: str) -> tuple[str, str] | None:
    """The parent and its call of a child that has ended, whatever else is in its row; None: it has not, or has none."""
    ended = (jobs.c.id == child_id, jobs.c.finished_at.is_not(None), jobs.c.parent_call_id.is_not(None))
    row = tx.connection.execute(select(jobs.c.parent_id, jobs.c.parent_call_id).where(*ended)).one_or_none()
    return None if row is None else (row.parent_id, row.parent_call_id)


def astray(tx: Transaction, limit: int, but: Collection[str]) -> list[str]:
    """Ids of live children that don't go along with their parents: those have ended, are to stop, are held, or go on again."""
    told_to_go_on = and_(jobs.c.hold == Hold.PARENT, _PARENT.c.hold.is_(None))
    told_to_wait = and_(jobs.c.hold.is_(None), _PARENT.c.hold.is_not(None))
    over = or_(_PARENT.c.finished_at.is_not(None), _PARENT.c.stopping.is_not(None))
    live = (jobs.c.parent_id == _PARENT.c.id, jobs.c.parent_id.is_not(None), jobs.c.finished_at.is_(None), jobs.c.stopping.is_(None))
    statement = select(jobs.c.id).where(*live, or_(told_to_go_on, told_to_wait, over), jobs.c.id.not_in(but))
    return list(tx.connection.execute(statement.limit(limit)).scalars())


def short_of_family(tx: Transaction, limit: int, but: Collection[str]) -> list[str]:
    """Ids of children that wait for a budget with no time set to look at them, where a job of their family was extended."""
    relative = jobs.alias("relative")
    extended = select(relative.c.id).where(
        or_(relative.c.id == jobs.c.root_id, relative.c.root_id == jobs.c.root_id), relative.c.limits.is_not(None)
    )
    waiting = (jobs.c.waiting_until.is_not(None), jobs.c.hold == Hold.BUDGET, jobs.c.root_id.is_not(None), jobs.c.not_before.is_(None))
    statement = select(jobs.c.id).where(*waiting, extended.exists(), jobs.c.id.not_in(but))
    return list(tx.connection.execute(statement.limit(limit)).scalars())


def set_look(tx: Transaction, job_id: str, pause_s: float) -> None:
    """Let the scheduler look in `pause_s` seconds whether a job that waits for a budget may go on; an earlier look stands."""
    later = func.clock_timestamp() + timedelta(seconds=pause_s)
    waiting = (jobs.c.id == job_id, jobs.c.waiting_until.is_not(None), jobs.c.hold == Hold.BUDGET)
    tx.connection.execute(update(jobs).where(*waiting).values(not_before=func.least(jobs.c.not_before, later)))


def wake_short(tx: Transaction, root_id: str) -> None:
    """Let the scheduler look at all of a family that wait for a budget: a job of it was extended."""
    of_family = or_(jobs.c.id == root_id, jobs.c.root_id == root_id)
    waiting = (jobs.c.waiting_until.is_not(None), jobs.c.hold == Hold.BUDGET, jobs.c.not_before.is_not(None))
    # In one order: two extensions of a family at once would wait for each other.
    chosen = select(jobs.c.id).where(of_family, *waiting).order_by(jobs.c.id).with_for_update()
    tx.connection.execute(update(jobs).where(jobs.c.id.in_(chosen)).values(not_before=func.clock_timestamp()))


def hold_for(tx: Transaction, call_id: str, child_id: str) -> None:
    """Let a pending call wait for a child's end."""
    values = {"held": Held.CHILD.value, "due_at": None, "started_at": func.now(), "details": {CHILD: child_id}}
    tx.connection.execute(update(calls).where(calls.c.id == call_id).values(values))


def settle(tx: Transaction, call_id: str, values: Mapping[str, Any]) -> bool:
    """Write the outcome of a call that no executor runs, under its job's row lock; False where it has one."""
    open_call = (calls.c.id == call_id) & (calls.c.status == CallStatus.PENDING)
    ended = {"held": None, "due_at": None, "not_before": None, "finished_at": func.now()}
    return tx.connection.execute(update(calls).where(open_call).values({**values, **ended})).rowcount == 1
