"""Lists of a tenant's jobs: filtered, in the order of their ids, a page at a time.

Every filter leads to an index, so that a page costs what it shows and not what the tenant has (migration 0010 has those that only lists
need; a test looks at the plans). Jobs at work are changed at every step, and each index on all of them is written each time: where it
can, an index holds ended jobs only, and the others are found among the live ones, which are few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import ColumnElement, and_, literal_column, or_, select

from dualtrack.db.engine import Transaction
from dualtrack.db.rows import job_of
from dualtrack.db.tables import USUAL_AGENT, jobs
from dualtrack.domain.ids import first_id
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import TERMINAL, JobStatus
from dualtrack.domain.limits import CLOCK_SKEW_S


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which of a tenant's jobs a list shows: those that all of this is true of. Times are aware; `after` is that time or later,
    `before` is earlier, so that ranges that meet share nothing and leave nothing out.
    """

    statuses: Sequence[JobStatus] = ()
    """One of these; empty: any."""
    reasons: Sequence[str] = ()
    agent: str | None = None
    parent_id: str | None = None
    root_id: str | None = None
    """Below this job, which is the top of its family."""
    forked_from: str | None = None
    schedule_id: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Carries all of these."""
    created_after: datetime | None = None
    created_before: datetime | None = None
    finished_after: datetime | None = None
    finished_before: datetime | None = None


def page(
    tx: Transaction, tenant_id: str, *, limit: int, wanted: JobFilter | None = None, cursor: str | None = None, oldest_first: bool = False
) -> list[Job]:
    """At most `limit` of a tenant's jobs, newest first or oldest first, those behind the job `cursor` in that order."""
    statement = select(jobs).where(jobs.c.tenant_id == tenant_id, *_conditions(wanted or JobFilter()))
    if cursor is not None:
        statement = statement.where(jobs.c.id > cursor if oldest_first else jobs.c.id < cursor)
    order = jobs.c.id.asc() if oldest_first else jobs.c.id.desc()
    return [job_of(row) for row in tx.connection.execute(statement.order_by(order).limit(limit))]


def schedule_ids(tx: Transaction, job_ids: Sequence[str]) -> dict[str, str]:
    """For each of these jobs that a schedule started: that schedule, which may be removed since."""
    statement = select(jobs.c.id, jobs.c.schedule_id).where(jobs.c.id.in_(job_ids), jobs.c.schedule_id.is_not(None))
    return {row.id: row.schedule_id for row in tx.connection.execute(statement)}


def _conditions(wanted: JobFilter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if wanted.statuses:
        found.append(_status(wanted.statuses))
    if wanted.reasons:
        found.append(jobs.c.reason.in_(list(wanted.reasons)))
    if wanted.agent is not None:
        found.append(jobs.c.agent_name == wanted.agent)
        if wanted.agent != USUAL_AGENT:
            found.append(jobs.c.agent_name != literal_column(f"'{USUAL_AGENT}'"))  # as the index says it
    for column, value in (
        (jobs.c.parent_id, wanted.parent_id),
        (jobs.c.root_id, wanted.root_id),
        (jobs.c.forked_from, wanted.forked_from),
        (jobs.c.schedule_id, wanted.schedule_id),
    ):
        if value is not None:
            found.append(column == value)
    if wanted.metadata:
        found.append(jobs.c.metadata.contains(dict(wanted.metadata)))
    return found + _times(wanted)


def _status(statuses: Sequence[JobStatus]) -> ColumnElement[bool]:
    """The statuses, with what they say of the columns that indexes are on."""
    ended = [status.value for status in statuses if status in TERMINAL]
    live = [status.value for status in statuses if status not in TERMINAL]
    parts = [and_(jobs.c.status.in_(ended), jobs.c.finished_at.is_not(None))] if ended else []
    if live == [JobStatus.WAITING.value]:
        parts.append(and_(jobs.c.status.in_(live), jobs.c.waiting_until.is_not(None)))
    elif live:
        parts.append(and_(jobs.c.status.in_(live), jobs.c.finished_at.is_(None)))
    return or_(*parts)


def _times(wanted: JobFilter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if wanted.created_after is not None:
        # Ids sort by time as well, that of the router that made them: its index serves in place of one more.
        found += [jobs.c.created_at >= wanted.created_after, jobs.c.id >= first_id("job", wanted.created_after.timestamp() - CLOCK_SKEW_S)]
    if wanted.created_before is not None:
        found += [jobs.c.created_at < wanted.created_before, jobs.c.id < first_id("job", wanted.created_before.timestamp() + CLOCK_SKEW_S)]
    if wanted.finished_after is not None:
        found.append(jobs.c.finished_at >= wanted.finished_after)
    if wanted.finished_before is not None:
        found.append(jobs.c.finished_at < wanted.finished_before)
    return found
