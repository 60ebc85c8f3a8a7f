"""Presence: a session lock that tells the living from the dead, and the channel by which the living are called."""

from __future__ import annotations

import threading
import time

from sqlalchemy import text

from dualtrack.db import claims
from dualtrack.db.engine import Database
from dualtrack.db.presence import Presence, call
from dualtrack.testing.waiting import PATIENCE_S

from .conftest import LIMITS, new_job, wait_for


def holders(database: Database) -> list[int]:
    with database.transaction() as tx:
        here = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"  # others may be ending in theirs
        found = tx.connection.execute(text(f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND {here}"))
        return list(found.scalars())


def test_a_presence_that_lost_its_connection_comes_back(database: Database, presence: Presence) -> None:
    (before,) = holders(database)
    with database.transaction() as tx:
        tx.connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": before})
    wait_for(lambda: holders(database) not in ([], [before]))


def test_a_presence_whose_old_session_the_server_still_keeps_takes_its_place(database: Database) -> None:
    """As after a network that broke without a word: the server holds the lock for a session that nobody uses any more."""
    presence = Presence(database, check_s=0.5)
    with database.engine.connect() as ghost:
        ghost.execute(text("SELECT pg_advisory_lock(:key)"), {"key": presence.key})
        (before,) = holders(database)
        presence.start()
        assert holders(database) != [before]
        ghost.invalidate()
    presence.close()
    wait_for(lambda: holders(database) == [])


def test_a_presence_hears_that_it_is_called_whatever_befell_its_connection(database: Database) -> None:
    heard = threading.Event()
    presence = Presence(database, check_s=1000)
    presence.on_call(heard.set)
    presence.start()
    try:
        with database.transaction() as tx:
            call(tx, [presence.key, presence.key, 17])
            assert not heard.wait(0.2)  # not before the commit
        assert heard.wait(PATIENCE_S)
        heard.clear()
        (before,) = holders(database)
        with database.transaction() as tx:
            tx.connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": before})
        wait_for(lambda: holders(database) not in ([], [before]))

        def called() -> bool:
            with database.transaction() as tx:
                call(tx, [presence.key])
            return heard.wait(0.1)

        wait_for(called)  # it listens a moment after it holds its lock
    finally:
        began = time.monotonic()
        presence.close()
        assert time.monotonic() - began < PATIENCE_S


def test_a_closed_presence_frees_its_claims_at_once(database: Database, presence: Presence) -> None:
    with database.transaction() as tx:
        job_id = new_job(tx)
        claims.claim(tx, "jobs", job_id, presence.key, LIMITS)
    presence.close()
    wait_for(lambda: holders(database) == [])
    with database.transaction() as tx:
        assert [row.id for row in claims.free_orphans(tx, "jobs")] == [job_id]
