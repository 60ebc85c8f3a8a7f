"""Lists of jobs: what a filter shows, and that a page costs what it shows, however many jobs the tenant has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import event, text

from dualtrack.db import job_lists, jobs, migrate, tenants
from dualtrack.db.engine import Database
from dualtrack.db.job_lists import JobFilter
from dualtrack.domain.ids import first_id
from dualtrack.domain.job import AgentProfile, JobSpec
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.settings import DatabaseSettings
from dualtrack.testing.servers import Postgres

JOBS = 20_000
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
"""The jobs were accepted one a minute from here on, and each ended half a minute later."""
MOST_ROWS = 200
"""Rows that a page of 20 may look at beyond those of a range of time that it is asked for."""
FILL = """
INSERT INTO jobs (id, tenant_id, spec, agent_name, status, phase, reason, metadata, created_at, finished_at, deadline_at,
                  waiting_since, waiting_until, parent_id, root_id, forked_from, schedule_id)
SELECT made.id, :tenant, first.spec, CASE WHEN n % 2000 = 7 THEN 'rare' ELSE 'default' END,
       CASE WHEN n = :jobs THEN 'queued' WHEN n = :jobs - 1 THEN 'waiting' WHEN n = 11 THEN 'expired' ELSE 'succeeded' END,
       CASE WHEN n >= :jobs - 1 THEN 'plan' ELSE 'none' END,
       CASE WHEN n = :jobs - 1 THEN 'paused' WHEN n = 11 THEN 'limit_wall_time' END,
       CASE WHEN n % 2000 = 9 THEN '{"team": "rare"}'::jsonb ELSE '{}'::jsonb END,
       began, CASE WHEN n < :jobs - 1 THEN began + interval '30 seconds' END, began,
       CASE WHEN n = :jobs - 1 THEN began END, CASE WHEN n = :jobs - 1 THEN began END,
       family.id, family.id, CASE WHEN n % 2000 = 15 THEN first.id END, CASE WHEN n % 2000 = 17 THEN 'sched_1' END
FROM (SELECT id, spec FROM jobs WHERE id = :first) first, unnest(CAST(:ids AS text[])) WITH ORDINALITY made(id, n),
     LATERAL (SELECT CAST(:began AS timestamptz) + n * interval '1 minute' AS began,
              CASE WHEN n % 2000 = 13 THEN first.id END AS id) family
"""


@pytest.fixture(scope="module")
def filled(postgres: Postgres) -> Iterator[tuple[Database, str, str]]:
    """A tenant with very many jobs, the tenant's id, and the job that some of them come from."""
    url = postgres.create_database()
    database = Database(DatabaseSettings(url=SecretStr(url)))
    migrate.upgrade(database)
    first = first_id("job", BEGAN.timestamp())
    ids = [first_id("job", (BEGAN + timedelta(minutes=n)).timestamp()) for n in range(1, JOBS + 1)]
    with database.transaction() as tx:
        tenant = tenants.ensure_tenant(tx)
        spec = JobSpec(instructions="x", agent=AgentProfile(name="rare"))
        jobs.create(tx, job_id=first, tenant_id=tenant, spec=spec, workspace=None, traceparent="", request_traceparent="", ring_s=5)
        tx.connection.execute(text(FILL), {"tenant": tenant, "first": first, "ids": ids, "jobs": JOBS, "began": BEGAN})
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE jobs"))
    yield database, tenant, first
    database.close()
    postgres.drop_database(url)


def looked_at(plan: dict[str, Any]) -> int:
    """Rows that a plan read, those it threw away included."""
    own = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Index Recheck", 0)) * plan[
        "Actual Loops"
    ]
    return int(max(own, *(looked_at(below) for below in plan.get("Plans", ())), 0))


def explained(
    database: Database, tenant: str, wanted: JobFilter, *, oldest_first: bool, cursor: str | None
) -> tuple[list[str], dict[str, Any]]:
    """What a page shows, and the plan that it took."""
    seen: list[tuple[str, Any]] = []
    with database.transaction() as tx:
        event.listen(tx.connection, "before_cursor_execute", lambda _c, _r, sql, given, *_: seen.append((sql, given)))
        found = job_lists.page(tx, tenant, limit=20, wanted=wanted, oldest_first=oldest_first, cursor=cursor)
        sql, given = seen[-1]
        raw = tx.connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", given).scalar_one()
    plan: dict[str, Any] = (json.loads(raw) if isinstance(raw, str) else raw)[0]["Plan"]
    return [job.id for job in found], plan


def at(minutes: float) -> datetime:
    return BEGAN + timedelta(minutes=minutes)


MIDDLE = JOBS // 2
DAY = 24 * 60
FILTERS: dict[str, tuple[dict[str, Any], int, int]] = {
    "none": ({}, 20, 0),
    "ended well": ({"statuses": [JobStatus.SUCCEEDED]}, 20, 0),
    "ended otherwise": ({"statuses": [JobStatus.EXPIRED]}, 1, 0),
    "at work": ({"statuses": [JobStatus.QUEUED, JobStatus.RUNNING]}, 2, 0),
    "waiting": ({"statuses": [JobStatus.WAITING]}, 1, 0),
    "waiting or expired": ({"statuses": [JobStatus.WAITING, JobStatus.EXPIRED]}, 2, 0),
    "reason": ({"reasons": ["limit_wall_time", "no_such_reason"]}, 1, 0),
    "agent": ({"agent": "rare"}, 11, 0),
    "unknown agent": ({"agent": "nobody"}, 0, 0),
    "children": ({"parent_id": "FIRST"}, 10, 0),
    "family": ({"root_id": "FIRST"}, 10, 0),
    "forks": ({"forked_from": "FIRST"}, 10, 0),
    "schedule": ({"schedule_id": "sched_1"}, 10, 0),
    "metadata": ({"metadata": {"team": "rare"}}, 10, 0),
    "accepted from": ({"created_after": at(JOBS - 4)}, 5, DAY),
    "accepted until": ({"created_before": at(5)}, 4, DAY),
    "accepted between": ({"created_after": at(MIDDLE), "created_before": at(MIDDLE + 7)}, 7, 2 * DAY),
    "ended from": ({"finished_after": at(JOBS - 4)}, 3, 0),
    "ended until": ({"finished_before": at(5)}, 4, 0),
    "ended between": ({"finished_after": at(MIDDLE), "finished_before": at(MIDDLE + 7)}, 7, 0),
    "a schedule's between": ({"schedule_id": "sched_1", "created_after": at(MIDDLE), "finished_before": at(MIDDLE + 2000)}, 1, 0),
    "expired of an agent": ({"statuses": [JobStatus.EXPIRED], "agent": "rare"}, 0, 0),
    "forks in a family": ({"root_id": "FIRST", "forked_from": "FIRST"}, 0, 0),
}


@pytest.mark.parametrize("oldest_first", [False, True], ids=["newest_first", "oldest_first"])
@pytest.mark.parametrize("name", FILTERS)
def test_a_page_looks_at_few_rows(filled: tuple[Database, str, str], name: str, *, oldest_first: bool) -> None:
    database, tenant, first = filled
    fields, expected, in_range = FILTERS[name]
    given: dict[str, Any] = {key: first if value == "FIRST" else value for key, value in fields.items()}
    wanted = JobFilter(**given)
    found, plan = explained(database, tenant, wanted, oldest_first=oldest_first, cursor=None)
    assert len(found) == expected
    assert found == sorted(found, reverse=not oldest_first)
    assert looked_at(plan) <= MOST_ROWS + in_range, json.dumps(plan, indent=1)
    if found:
        rest, plan = explained(database, tenant, wanted, oldest_first=oldest_first, cursor=found[len(found) // 2])
        assert rest[: len(found) - len(found) // 2 - 1] == found[len(found) // 2 + 1 :]
        assert looked_at(plan) <= MOST_ROWS + in_range, json.dumps(plan, indent=1)


def test_ranges_that_meet_share_nothing_and_leave_nothing_out(filled: tuple[Database, str, str]) -> None:
    database, tenant, _ = filled
    edge, ended = at(100), at(100.5)
    with database.transaction() as tx:

        def ids(**fields: Any) -> list[str]:
            return [job.id for job in job_lists.page(tx, tenant, limit=100, wanted=JobFilter(**fields), oldest_first=True)]

        for kind, at_edge in (("created", edge), ("finished", ended)):
            before = ids(**{f"{kind}_after": at(90), f"{kind}_before": at_edge})
            behind = ids(**{f"{kind}_after": at_edge, f"{kind}_before": at(110)})
            assert before + behind == ids(**{f"{kind}_after": at(90), f"{kind}_before": at(110)})
            assert (len(before), len(behind)) == (10, 10)


def test_jobs_of_a_router_whose_clock_is_wrong_are_found_by_their_time(database: Database) -> None:
    now = datetime.now(UTC)
    ids = [first_id("job", (now + timedelta(hours=off)).timestamp()) for off in (-20, 20)]
    with database.transaction() as tx:
        tenant = tenants.ensure_tenant(tx)
        for job_id in ids:
            jobs.create(
                tx, job_id=job_id, tenant_id=tenant, spec=JobSpec(instructions="x"), workspace=None, traceparent="",
                request_traceparent="", ring_s=5,
            )  # fmt: skip
        hour = timedelta(hours=1)
        wanted = JobFilter(created_after=now - hour, created_before=now + hour)
        assert [job.id for job in job_lists.page(tx, tenant, limit=9, wanted=wanted, oldest_first=True)] == ids
