"""A database of the first release, with jobs at work in it, is migrated: they go on and end, and the doctor finds nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import text

from dualtrack.db import jobs, migrate, tenants
from dualtrack.db.engine import Database, Transaction
from dualtrack.doctor import examination
from dualtrack.domain.ids import new_id
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.domain.waiting import WaitReason
from dualtrack.engine import steering
from dualtrack.settings import DatabaseSettings

from .conftest import Make, finish, shell, types

FIRST = "0001"
DEAD = 4711
"""The key of a worker of the first release, stopped for the upgrade."""
SPEC = {"instructions": "do it", "agent": {"name": "default", "model": "deep", "tools": ["shell", "finish"]}, "limits": {"steps": 50}}


@pytest.fixture
def database(postgres: Any) -> Iterator[Database]:
    """At the first release's revision."""
    url = postgres.create_database()
    opened = Database(DatabaseSettings(url=SecretStr(url)))
    migrate.upgrade(opened, FIRST)
    yield opened
    opened.close()
    postgres.drop_database(url)


def insert(tx: Transaction, table: str, **values: Any) -> None:
    """With the columns that the first release knew."""
    sql = {name: value for name, value in values.items() if isinstance(value, str) and value.startswith("now()")}
    names = [sql.get(name, f":{name}") for name in values]
    given = {name: json.dumps(value) if isinstance(value, dict | list) else value for name, value in values.items() if name not in sql}
    tx.connection.execute(text(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(names)})"), given)


def add_job(tx: Transaction, tenant_id: str, *told: tuple[str, dict[str, Any]], **more: Any) -> str:
    job_id = new_id("job")
    values = {"id": job_id, "tenant_id": tenant_id, "spec": SPEC, "agent_name": "default", "last_seq": len(told) + 1}
    insert(tx, "jobs", **values, deadline_at="now() + interval '1 hour'", **more)
    for seq, (kind, data) in enumerate((("job.queued", SPEC), *told), 1):
        insert(tx, "events", job_id=job_id, seq=seq, type=kind, data=data)
    return job_id


def add_step(tx: Transaction, tenant_id: str, job_id: str, command: str, **state: Any) -> None:
    insert(tx, "steps", job_id=job_id, number=1, thought="", model="scripted")
    values = {"id": new_id("call"), "job_id": job_id, "tenant_id": tenant_id, "step": 1, "position": 0, "tool": "shell"}
    insert(tx, "calls", **values, effect="workspace", arguments={"command": command}, **state)


def decided(command: str) -> tuple[str, dict[str, Any]]:
    usage = {"input_tokens": 0, "output_tokens": 0, "cached_tokens": 0, "total_tokens": 0, "cost_usd": "0"}
    data = {"step": 1, "model": "scripted", "thought": "", "calls": [{"tool": "shell", "arguments": {"command": command}}], "usage": usage}
    return "step.decided", data | {"reflection": "", "latency_s": 0.0, "attempt": 1}


STARTED: tuple[str, dict[str, Any]] = ("job.started", {})
OWNED = {"attempt": 1, "tries": 1, "owner": DEAD, "lease_until": "now() + interval '10 seconds'", "due_at": "now() + interval '10 seconds'"}


def test_jobs_at_work_outlast_the_upgrade(make: Make, database: Database) -> None:
    with database.transaction() as tx:
        tenant = tenants.ensure_tenant(tx)
        queued = add_job(tx, tenant, status="queued", phase="plan", due_at="now()")
        deciding = add_job(tx, tenant, STARTED, status="running", phase="plan", started_at="now()", **OWNED)
        calling = add_job(tx, tenant, STARTED, decided("echo 1"), status="running", phase="execute", started_at="now()", step=1)
        add_step(tx, tenant, calling, "echo 1", status="running", started_at="now()", **OWNED)
        due = add_job(tx, tenant, STARTED, decided("echo 2"), status="running", phase="execute", started_at="now()", step=1)
        add_step(tx, tenant, due, "echo 2", status="pending", due_at="now()")
        paused = add_job(tx, tenant, status="queued", phase="plan", due_at="now()")
    migrate.upgrade(database)
    stepper = make([shell("true"), finish()])
    found = {job_id: get(database, job_id) for job_id in (queued, deciding, calling, due, paused)}
    assert all(job.limits == job.spec.limits for job in found.values())
    with database.transaction() as tx:
        steering.pause(tx, stepper.runtime, jobs.get(tx, paused, lock=True), by="test")
    for job_id in (queued, deciding, calling, due):
        assert stepper.run(found[job_id]).status is JobStatus.SUCCEEDED
        assert types(stepper, found[job_id])[-1] == "job.succeeded"
    assert get(database, paused).reason == WaitReason.PAUSED
    with database.transaction() as tx:
        steering.resume(tx, stepper.runtime, jobs.get(tx, paused, lock=True), by="test")
    assert stepper.run(found[paused]).status is JobStatus.SUCCEEDED
    assert {finding.name: finding.first for finding in examination.examine(database) if not finding.holds} == {}


def get(database: Database, job_id: str) -> Job:
    with database.transaction() as tx:
        return jobs.get(tx, job_id)
