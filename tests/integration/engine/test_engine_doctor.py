"""The doctor: every check finds the damage it is there for, and none complains of a healthy database."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from dualtrack.db.engine import Database
from dualtrack.doctor import examination
from dualtrack.domain.errors import NotFound
from dualtrack.domain.job import Job
from dualtrack.testing.stepper import Stepper

from .conftest import Make, finish, shell

_CHECKS = {check.name: check for check in examination.CHECKS}


@pytest.fixture
def stepper(make: Make) -> Stepper:
    return make([shell("echo one > a"), {"calls": [shell("false"), shell("echo two > b")]}, finish()])


@pytest.fixture
def ended(stepper: Stepper) -> Job:
    """A job that made three steps and succeeded."""
    return stepper.run(stepper.submit())


@pytest.fixture
def live(stepper: Stepper, ended: Job) -> Job:
    """A job whose first call is due."""
    del ended  # it takes the script's steps from the beginning
    job = stepper.submit()
    assert stepper.ring()
    return stepper.job(job)


def damage(database: Database, *statements: str, **values: Any) -> None:
    """Change rows past all triggers and checks."""
    with database.transaction() as tx:
        tx.connection.execute(text("SET LOCAL session_replication_role = replica"))
        for table in ("jobs", "calls"):
            names = tx.connection.execute(
                text("SELECT conname FROM pg_constraint WHERE contype = 'c' AND conrelid = CAST(:table AS regclass)"), {"table": table}
            ).scalars()
            for name in names:
                tx.connection.execute(text(f"ALTER TABLE {table} DROP CONSTRAINT {name}"))
        for statement in statements:
            changed = tx.connection.execute(text(statement), values)
            assert changed.rowcount, statement


def broken(database: Database, job_id: str | None = None) -> dict[str, list[str]]:
    """What the doctor finds: by check, the details of the first offenders."""
    found = examination.examine(database, job_id=job_id)
    return {finding.name: [item.detail for item in finding.first] for finding in found if not finding.holds}


def test_a_healthy_database(database: Database, ended: Job, live: Job) -> None:
    found = list(examination.examine(database))
    assert [finding.name for finding in found] == list(_CHECKS)
    assert broken(database) == {}
    assert {finding.subject: finding.looked_at for finding in found if finding.subject in {"jobs", "steps"}} == {"jobs": 2, "steps": 4}
    one = {finding.name: finding.looked_at for finding in examination.examine(database, job_id=live.id)}
    assert (one["jobs.woken"], one["steps.numbered"], one["events.gapless"]) == (1, 1, live.last_seq)


def test_an_empty_database_and_an_unknown_job(database: Database) -> None:
    assert broken(database) == {}
    with pytest.raises(NotFound, match="job_x"):
        list(examination.examine(database, job_id="job_x"))


ENDED = [
    ("events.gapless", "DELETE FROM events WHERE job_id = :job AND seq = 3"),
    ("events.gapless", "UPDATE jobs SET last_seq = last_seq + 1 WHERE id = :job"),
    ("events.first", "UPDATE events SET type = 'job.started' WHERE job_id = :job AND seq = 1"),
    ("events.end", "UPDATE events SET type = 'job.failed' WHERE job_id = :job AND type = 'job.succeeded'"),
    ("events.end", "UPDATE events SET type = 'job.succeeded' WHERE job_id = :job AND seq = 2"),
    (
        "events.outcomes",
        "UPDATE events SET type = 'call.retrying' WHERE job_id = :job AND type = 'call.finished' AND data->>'tool' = 'shell'",
    ),
    (
        "events.outcomes",
        "UPDATE events SET data = data || '{\"ok\": false}' WHERE job_id = :job AND type = 'call.finished' AND data->'ok' = 'true'",
    ),
    (
        "events.outcomes",
        "UPDATE events SET type = 'call.finished', data = data || '{\"ok\": true}' WHERE job_id = :job AND type = 'call.started'",
    ),
    ("events.known_calls", "UPDATE events SET data = data || '{\"call_id\": \"call_x\"}' WHERE job_id = :job AND type = 'call.started'"),
    ("steps.numbered", "UPDATE steps SET number = 7 WHERE job_id = :job AND number = 3"),
    ("steps.events", "UPDATE events SET type = 'step.retrying' WHERE job_id = :job AND type = 'step.decided'"),
    ("calls.step", "DELETE FROM steps WHERE job_id = :job AND number = 2"),
    ("jobs.at_rest", "UPDATE jobs SET due_at = now() WHERE id = :job"),
    ("jobs.finished", "UPDATE jobs SET finished_at = NULL WHERE id = :job"),
    ("calls.at_rest", "UPDATE calls SET due_at = now() WHERE job_id = :job AND step = 1"),
    ("calls.live_job", "UPDATE calls SET status = 'pending', finished_at = NULL WHERE job_id = :job AND step = 2 AND position = 0"),
    ("usage.job", "UPDATE jobs SET output_tokens = output_tokens + 1 WHERE id = :job"),
    ("usage.job", "UPDATE jobs SET cost_usd = cost_usd + 0.000000001 WHERE id = :job"),
    ("usage.end", "UPDATE events SET data = jsonb_set(data, '{usage,input_tokens}', '7') WHERE job_id = :job AND type = 'job.succeeded'"),
]
LIVE = [
    ("jobs.woken", "UPDATE calls SET due_at = NULL WHERE job_id = :job"),
    ("jobs.woken", "UPDATE jobs SET phase = 'plan' WHERE id = :job"),
    ("jobs.lease", "UPDATE jobs SET owner = 7 WHERE id = :job"),
    ("jobs.scheduler", "UPDATE jobs SET deadline_at = now() - interval '1 hour' WHERE id = :job"),
    ("calls.lease", "UPDATE calls SET status = 'running' WHERE job_id = :job"),
    ("calls.live_job", "UPDATE jobs SET step = 2 WHERE id = :job"),
    ("events.end", "UPDATE events SET type = 'job.expired' WHERE job_id = :job AND seq = last_seq_of(:job)"),
]


@pytest.mark.parametrize(("check", "statement"), ENDED)
def test_damage_to_an_ended_job_is_found(database: Database, ended: Job, check: str, statement: str) -> None:
    damage(database, statement, job=ended.id)
    assert check in broken(database)
    assert check in broken(database, ended.id)


@pytest.mark.parametrize(("check", "statement"), LIVE)
def test_damage_to_a_live_job_is_found(database: Database, ended: Job, live: Job, check: str, statement: str) -> None:
    damage(database, statement.replace("last_seq_of(:job)", str(live.last_seq)), job=live.id)
    assert check in broken(database)
    assert check in broken(database, live.id)
    assert broken(database, ended.id) == {}


def test_every_check_has_its_damage() -> None:
    assert {name for name, _ in (*ENDED, *LIVE)} == set(_CHECKS)
    assert len(_CHECKS) == len(examination.CHECKS)


def test_only_the_first_offenders_are_named(database: Database, stepper: Stepper) -> None:
    for _ in range(examination.FIRST + 2):
        stepper.submit()
    damage(database, "UPDATE jobs SET due_at = NULL")
    (woken,) = (finding for finding in examination.examine(database) if finding.name == "jobs.woken")
    assert (woken.count, len(woken.first)) == (examination.FIRST + 2, examination.FIRST)
