"""Claims: won once, fenced by their attempt, renewed by the living, freed of the dead, and rung for when due."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import func, insert, text, update
from sqlalchemy.exc import DBAPIError

from dualtrack.db import claims, jobs, steps
from dualtrack.db.engine import Database
from dualtrack.db.presence import Presence
from dualtrack.db.tables import calls
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.domain.errors import StaleAttempt
from dualtrack.domain.ids import new_id
from dualtrack.domain.limits import PlatformLimits

from .conftest import DEAD, LIMITS, new_job


def test_a_claim_is_won_once_while_its_owner_lives(database: Database, presence: Presence) -> None:
    with database.transaction() as tx:
        job_id = new_job(tx)
    won: list[int] = []

    def try_it() -> None:
        with database.transaction() as tx:
            row = claims.claim(tx, "jobs", job_id, presence.key, LIMITS)
            if row is not None:
                won.append(row.attempt)

    threads = [threading.Thread(target=try_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [1]


def test_a_dead_owners_claim_is_free_at_once_and_its_late_write_is_refused(database: Database, presence: Presence) -> None:
    with database.transaction() as tx:
        job_id = new_job(tx)
        assert claims.claim(tx, "jobs", job_id, DEAD, LIMITS) is not None
    with database.transaction() as tx:
        row = claims.claim(tx, "jobs", job_id, presence.key, LIMITS)
        assert row is not None
        assert row.attempt == 2
    with pytest.raises(StaleAttempt), database.transaction() as tx:
        jobs.release(tx, job_id, 1, {"tries": 0})
    with database.transaction() as tx:
        jobs.release(tx, job_id, 2, {"tries": 0})


def test_an_expired_lease_is_free_although_its_owner_lives(database: Database, presence: Presence) -> None:
    with database.transaction() as tx:
        job_id = new_job(tx)
        claims.claim(tx, "jobs", job_id, presence.key, LIMITS)
        tx.connection.execute(update(jobs_table).values(lease_until=func.now() - text("interval '1 second'")))
    with database.transaction() as tx:
        row = claims.claim(tx, "jobs", job_id, presence.key, LIMITS)
        assert row is not None
        assert row.attempt == 2


def test_renewing_extends_leases_and_tells_what_is_lost_or_stopped(database: Database, presence: Presence) -> None:
    with database.transaction() as tx:
        kept, stopped, lost = new_job(tx), new_job(tx), new_job(tx)
        for job_id in (kept, stopped, lost):
            claims.claim(tx, "jobs", job_id, presence.key, LIMITS)
        jobs.change(tx, stopped, {"stopping": "cancelled"})
        jobs.change(tx, lost, {"attempt": 7})
    with database.transaction() as tx:
        assert claims.renew(tx, "jobs", [(kept, 1), (stopped, 1), (lost, 1)], LIMITS) == {(kept, 1): False, (stopped, 1): True}


def test_renewing_does_not_wait_for_a_row_somebody_is_changing(database: Database, presence: Presence) -> None:
    with database.transaction() as tx:
        job_id = new_job(tx)
        claims.claim(tx, "jobs", job_id, presence.key, LIMITS)
    with database.transaction() as holder:
        jobs.get(holder, job_id, lock=True)
        with database.transaction() as tx:
            tx.connection.execute(text("SET LOCAL lock_timeout = '500ms'"))
            assert claims.renew(tx, "jobs", [(job_id, 1)], LIMITS) == {(job_id, 1): False}


def test_due_rows_are_rung_once_and_again_later_and_by_one_scheduler_only(database: Database) -> None:
    with database.transaction() as tx:
        ids = {new_job(tx) for _ in range(20)}
        assert claims.ring_due(tx, "jobs", LIMITS, 500) == []  # their first ring was just sent
        tx.connection.execute(update(jobs_table).values(due_at=func.now()))
    with database.transaction() as one, database.transaction() as other:
        first = {row.id for row in claims.ring_due(one, "jobs", LIMITS, 7)}
        second = {row.id for row in claims.ring_due(other, "jobs", LIMITS, 500)}
    assert len(first) == 7
    assert first | second == ids
    assert not first & second
    with database.transaction() as tx:
        assert claims.ring_due(tx, "jobs", LIMITS, 500) == []


def test_a_dead_owners_row_is_due_before_its_lease_ends_and_however_many_others_wait(database: Database) -> None:
    with database.transaction() as tx:
        waiting = [new_job(tx) for _ in range(30)]
        tx.connection.execute(update(jobs_table).values(due_at=func.now() - text("interval '1 hour'")))
        job_id = new_job(tx)
        claims.claim(tx, "jobs", job_id, DEAD, LIMITS)
    with database.transaction() as tx:
        assert [row.id for row in claims.free_orphans(tx, "jobs")] == [job_id]
        assert claims.free_orphans(tx, "jobs") == []
        assert {row.id for row in claims.ring_due(tx, "jobs", LIMITS, 500)} == {job_id, *waiting}


def test_a_ring_during_a_pause_is_ignored(database: Database, presence: Presence) -> None:
    with database.transaction() as tx:
        job_id = new_job(tx)
        jobs.change(tx, job_id, {"not_before": func.now() + text("interval '1 hour'")})
        assert claims.claim(tx, "jobs", job_id, presence.key, LIMITS) is None
        jobs.change(tx, job_id, {"not_before": func.now()})
        row = claims.claim(tx, "jobs", job_id, presence.key, LIMITS)
        assert row is not None
        assert row.not_before is None


def test_a_claim_that_waited_for_a_lock_has_its_whole_lease(database: Database, presence: Presence) -> None:
    with database.transaction() as tx:
        job_id = new_job(tx)
    with database.transaction() as tx:
        tx.connection.execute(text("SELECT pg_sleep(0.3)"))  # the transaction is older than the claim
        row = claims.claim(tx, "jobs", job_id, presence.key, PlatformLimits(lease_s=0.2, heartbeat_s=0.05))
        assert row is not None
        whole = tx.connection.execute(text("SELECT lease_until >= now() + interval '0.5 seconds' FROM jobs")).scalar_one()
    assert whole  # from the claim on, not from the beginning of the transaction


def test_an_outcome_is_written_once(database: Database, presence: Presence) -> None:
    with database.transaction() as tx:
        job_id = new_job(tx)
        row = {"id": new_id("call"), "job_id": job_id, "tenant_id": "t", "step": 1, "position": 0, "tool": "shell", "effect": "pure"}
        tx.connection.execute(insert(calls).values(row | {"arguments": {}, "status": "pending", "due_at": func.now()}))
        claims.claim(tx, "calls", row["id"], presence.key, LIMITS)  # type: ignore[arg-type]
        steps.settle(tx, str(row["id"]), 1, {"status": "succeeded", "ok": True})
    with pytest.raises(StaleAttempt), database.transaction() as tx:
        steps.settle(tx, str(row["id"]), 1, {"status": "failed", "ok": False})
    with pytest.raises(DBAPIError, match="its outcome is written"), database.transaction() as tx:
        tx.connection.execute(update(calls).values(preview="other"))
