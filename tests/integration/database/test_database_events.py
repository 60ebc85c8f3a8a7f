"""Events: gapless, append-only, and gone by a retention rule only."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import delete, func, select, text, update
from sqlalchemy.exc import DBAPIError

from dualtrack.db import events
from dualtrack.db.engine import Database
from dualtrack.db.tables import events as events_table
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.domain.events import EventType, NewEvent

from .conftest import new_job


def test_events_can_not_be_changed(database: Database) -> None:
    with database.transaction() as tx:
        job_id = new_job(tx)
        events.append(tx, job_id, NewEvent(EventType.JOB_QUEUED, {}))
    with pytest.raises(DBAPIError, match="append-only"), database.transaction() as tx:
        tx.connection.execute(update(events_table).values(type="job.failed"))


def test_concurrent_writers_leave_no_gap_and_no_repeat_in_a_jobs_events(database: Database) -> None:
    with database.transaction() as tx:
        job_id = new_job(tx)

    def write() -> None:
        for _ in range(20):
            with database.transaction() as tx:
                events.append(tx, job_id, NewEvent(EventType.CALL_STARTED, {}), NewEvent(EventType.CALL_FINISHED, {}))

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.transaction() as tx:
        assert [event.seq for event in events.page(tx, job_id, after=0, limit=1000)] == list(range(1, 241))
        assert events.heads(tx, [job_id, "job_none"]) == {job_id: (240, False, False)}


def test_a_rolled_back_transaction_leaves_no_gap_and_rings_nobody(database: Database) -> None:
    rung: list[str] = []
    with database.transaction() as tx:
        job_id = new_job(tx)
    with pytest.raises(RuntimeError), database.transaction() as tx:
        events.append(tx, job_id, NewEvent(EventType.JOB_STARTED, {}))
        tx.after_commit(lambda: rung.append("lost"))
        raise RuntimeError
    with database.transaction() as tx:
        assert events.append(tx, job_id, NewEvent(EventType.JOB_STARTED, {})) == 1
        tx.after_commit(lambda: rung.append("kept"))
    assert rung == ["kept"]


def test_a_job_is_not_deleted_from_under_its_events(database: Database) -> None:
    with database.transaction() as tx:
        job_id = new_job(tx)
        events.append(tx, job_id, NewEvent(EventType.JOB_QUEUED, {}))
    with pytest.raises(DBAPIError, match="violates"), database.transaction() as tx:
        tx.connection.execute(delete(jobs_table))


@pytest.mark.parametrize("statement", ["DELETE FROM events", "TRUNCATE events"])
def test_events_go_only_by_a_retention_rule(database: Database, statement: str) -> None:
    with database.transaction() as tx:
        events.append(tx, new_job(tx), NewEvent(EventType.JOB_QUEUED, {}))
    with pytest.raises(DBAPIError, match="events are kept"), database.transaction() as tx:
        tx.connection.execute(text(statement))
    with database.transaction() as tx:
        tx.connection.execute(text("SET LOCAL dualtrack.retention = 'on'"))
        tx.connection.execute(text(statement))
    with database.transaction() as tx:
        assert tx.connection.execute(select(func.count()).select_from(events_table)).scalar_one() == 0
