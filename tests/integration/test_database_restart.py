"""PostgreSQL restarts under living workers: nobody takes their work over, and the dead are still found."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from pydantic import SecretStr
from sqlalchemy import text

from dualtrack.db import claims, jobs, migrate, tenants
from dualtrack.db.engine import Database, Transaction
from dualtrack.db.presence import DEAD_OWNER_SQL, Presence
from dualtrack.domain.errors import DatabaseUnavailable
from dualtrack.domain.ids import new_id
from dualtrack.domain.job import JobSpec
from dualtrack.domain.limits import PRESENCE_RETURN_S, PlatformLimits
from dualtrack.settings import DatabaseSettings
from dualtrack.testing.servers import Postgres

LIMITS = PlatformLimits(lease_s=300)  # no lease runs out here: only the session locks decide
_DEADLINE_S = 60.0


@pytest.fixture
def server() -> Iterator[Postgres]:
    with Postgres() as own:
        yield own


@pytest.fixture
def database(server: Postgres) -> Iterator[Database]:
    opened = Database(DatabaseSettings(url=SecretStr(server.create_database())))
    migrate.upgrade(opened)
    yield opened
    opened.close()


def claimed_job(tx: Transaction, owner: int) -> str:
    job_id = new_id("job")
    jobs.create(
        tx,
        job_id=job_id,
        tenant_id=tenants.ensure_tenant(tx),
        spec=JobSpec(instructions="do it"),
        workspace=None,
        key_id=None,
        traceparent="",
        request_traceparent="",
        ring_s=5,
    )
    assert claims.claim(tx, "jobs", job_id, owner, LIMITS) is not None
    return job_id


def crash_a_backend(database: Database) -> None:
    """The server then ends all sessions and recovers, without being started anew."""
    with pytest.raises(DatabaseUnavailable), database.transaction() as tx:
        os.kill(tx.connection.execute(text("SELECT pg_backend_pid()")).scalar_one(), signal.SIGKILL)
        tx.connection.execute(text("SELECT pg_sleep(60)"))


def age_of_the_server(tx: Transaction) -> float:
    """Seconds since it began, or began anew after a crash."""
    since = "greatest(pg_postmaster_start_time(), (SELECT stats_reset FROM pg_stat_bgwriter))"
    return float(tx.connection.execute(text(f"SELECT extract(epoch FROM clock_timestamp() - {since})")).scalar_one())


@pytest.mark.parametrize("how", ["restart", "kill", "crash"])
def test_a_restart_is_no_death(server: Postgres, database: Database, how: str) -> None:
    living, dead = Presence(database, check_s=0.5), Presence(database, check_s=0.5)
    living.start()
    dead.start()
    with database.transaction() as tx:
        of_the_living, of_the_dead = claimed_job(tx, living.key), claimed_job(tx, dead.key)
    if how == "kill":
        server.kill()
        dead.close()  # dies with the server away, as in a power failure
        server.start()
    elif how == "crash":
        dead.close()
        crash_a_backend(database)
    else:
        dead.close()
        server.restart()
    deadline = time.monotonic() + _DEADLINE_S
    freed: list[str] = []
    age = 0.0
    while not freed:
        assert time.monotonic() < deadline
        try:
            with database.transaction() as tx:
                back = tx.connection.execute(text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")).scalar_one()
                if back or age_of_the_server(tx) < PRESENCE_RETURN_S / 2:  # on a busy machine the living may come back too late
                    freed = [row.id for row in claims.free_orphans(tx, "jobs")]
                    age = age_of_the_server(tx)
        except DatabaseUnavailable:  # a pooled connection of the old server
            continue
        time.sleep(0.05)
    assert freed == [of_the_dead]
    assert age >= PRESENCE_RETURN_S
    with database.transaction() as tx:
        assert claims.claim(tx, "jobs", of_the_living, 7, LIMITS) is None
        assert claims.claim(tx, "jobs", of_the_dead, living.key, LIMITS) is not None
    living.close()


def test_the_living_are_read_once_for_a_statement(database: Database) -> None:
    with database.transaction() as tx:
        dead = DEAD_OWNER_SQL.format(owner="jobs.owner")
        rows = tx.connection.execute(text(f"EXPLAIN SELECT id FROM jobs WHERE owner IS NOT NULL AND {dead}")).scalars()
        assert "hashed SubPlan" in "\n".join(rows)
