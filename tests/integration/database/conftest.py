"""A migrated database on a real PostgreSQL, a process that is alive in it, and jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pydantic import SecretStr

from dualtrack.db import jobs, migrate, tenants
from dualtrack.db.engine import Database, Transaction
from dualtrack.db.presence import Presence
from dualtrack.domain.ids import new_id
from dualtrack.domain.job import JobSpec
from dualtrack.domain.limits import PlatformLimits
from dualtrack.settings import DatabaseSettings
from dualtrack.testing.waiting import wait_until

LIMITS = PlatformLimits()
DEAD = 1 << 60  # an owner whose session lock nobody holds


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = Database(DatabaseSettings(url=SecretStr(database_url)))
    migrate.upgrade(opened)
    yield opened
    opened.close()


@pytest.fixture
def presence(database: Database) -> Iterator[Presence]:
    mine = Presence(database, check_s=0.5)
    mine.start()
    yield mine
    mine.close()


def new_job(tx: Transaction) -> str:
    job_id = new_id("job")
    tenant = tenants.ensure_tenant(tx)
    spec = JobSpec(instructions="do it")
    jobs.create(
        tx, job_id=job_id, tenant_id=tenant, spec=spec, workspace=None, key_id=None, traceparent="", request_traceparent="", ring_s=5
    )
    return job_id


def wait_for(condition: Callable[[], bool]) -> None:
    wait_until(condition, "what the test waits for")
