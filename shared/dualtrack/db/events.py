"""The append-only log. Appending takes the job's row lock, so numbers are gapless and everything a job does is in one order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from psycopg.types.json import Jsonb
from sqlalchemy import BigInteger, Text, func, insert, select, true, update
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.sql.base import Executable

from dualtrack.db.engine import Transaction
from dualtrack.db.prepared import Prepared, given
from dualtrack.db.tables import events, jobs
from dualtrack.domain.errors import NotFound
from dualtrack.domain.events import Event, EventType, NewEvent
from dualtrack.domain.job import Job

_BY_PLANNER: Final = (
    EventType.STEP_DECIDED,
    EventType.STEP_MALFORMED,
    EventType.STEP_RETRYING,
    EventType.STEP_DROPPED,
    EventType.CONTEXT_COMPACTED,
)


def append(tx: Transaction, job_id: str, *new: NewEvent) -> int:
    """Append in order, in the same transaction as the state change they tell of; the last number written.

    Raises:
        NotFound: there is no such job.
    """
    datas = [Jsonb(event.data) for event in new]
    row = _APPEND.run(tx, {"of_job": job_id, "added": len(new), "types": [event.type.value for event in new], "datas": datas}).fetchone()
    if row is None:
        raise NotFound(f"There is no job {job_id}.")
    return int(row.last_seq)


def _append_statement() -> Executable:
    """Count the job's events on and insert the new ones, in one statement."""
    added = given("added", BigInteger())
    head = update(jobs).where(jobs.c.id == given("of_job")).values(last_seq=jobs.c.last_seq + added)
    counted = head.returning(jobs.c.id, jobs.c.last_seq).cte("counted")
    types, datas = given("types", ARRAY(Text())), given("datas", ARRAY(JSONB()))
    new = func.unnest(types, datas).table_valued("type", "data", with_ordinality="n", name="new").render_derived()
    rows = select(counted.c.id, counted.c.last_seq - added + new.c.n, new.c.type, new.c.data).select_from(counted.join(new, true()))
    written = insert(events).from_select(["job_id", "seq", "type", "data"], rows).cte("written")
    return select(counted.c.last_seq).add_cte(written)


_APPEND: Final = Prepared(_append_statement)


def page(tx: Transaction, job_id: str, *, after: int, limit: int, types: Collection[EventType] = ()) -> list[Event]:
    """Events with a number above `after`, in order, at most `limit`; only those of `types`, where any are given."""
    statement = select(events).where(events.c.job_id == job_id, events.c.seq > after)
    if types:
        statement = statement.where(events.c.type.in_([kind.value for kind in types]))
    rows = tx.connection.execute(statement.order_by(events.c.seq).limit(limit))
    return [Event(row.job_id, row.seq, EventType(row.type), row.data, row.at) for row in rows]


def times(tx: Transaction, job_id: str, numbers: Sequence[int]) -> dict[int, datetime]:
    """When these events happened."""
    rows = tx.connection.execute(select(events.c.seq, events.c.at).where(events.c.job_id == job_id, events.c.seq.in_(numbers)))
    return {row.seq: row.at for row in rows}


def paid(tx: Transaction, job_id: str, *, after: int, attempt: int) -> bool:
    """Whether one of the events with a number above `after` tells of what attempt `attempt` of the planner used."""
    theirs = events.c.data["attempt"].as_integer() == attempt
    told = events.c.type.in_(_BY_PLANNER) & events.c.data.has_key("usage") & theirs
    return (
        tx.connection.execute(select(events.c.seq).where(events.c.job_id == job_id, events.c.seq > after, told).limit(1)).first()
        is not None
    )


class Head(NamedTuple):
    """How far a job's log has come, and what that says of the job."""

    seq: int
    """its last number"""
    ended: bool
    waiting: bool
    """for a person or a budget"""

    @classmethod
    def of(cls, job: Job) -> Head:
        """That of a job as it was read."""
        return cls(job.last_seq, job.finished_at is not None, job.waiting_since is not None)

    @property
    def settled(self) -> bool:
        """Whether nothing more happens before somebody does something."""
        return self.ended or self.waiting


def heads(tx: Transaction, job_ids: Sequence[str]) -> dict[str, Head]:
    """How far the log of each of these jobs has come, of those that exist."""
    columns = (jobs.c.id, jobs.c.last_seq, jobs.c.finished_at, jobs.c.waiting_since)
    rows = tx.connection.execute(select(*columns).where(jobs.c.id.in_(job_ids)))
    return {row.id: Head(row.last_seq, row.finished_at is not None, row.waiting_since is not None) for row in rows}
