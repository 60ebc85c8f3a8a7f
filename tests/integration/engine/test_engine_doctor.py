"""The doctor: every check finds the damage it is there for, and none complains of a healthy database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, insert, text

from dualtrack.db import files, jobs, schedules
from dualtrack.db import webhooks as webhook_rows
from dualtrack.db.engine import Database
from dualtrack.db.hook_tables import webhooks
from dualtrack.doctor import examination, objects, references
from dualtrack.doctor.check import FIRST, Severity, Subject
from dualtrack.domain.errors import NotFound
from dualtrack.domain.job import Job, JobSpec
from dualtrack.engine import steering
from dualtrack.objects.blobs import BlobStore
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.stepper import Stepper

from .conftest import Make, finish, fork, python, shell

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
        for table in ("jobs", "calls", "deliveries"):
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
    ("steps.summary", "UPDATE jobs SET summary = 'all went well' WHERE id = :job"),
    ("calls.step", "DELETE FROM steps WHERE job_id = :job AND number = 2"),
    ("jobs.at_rest", "UPDATE jobs SET due_at = now() WHERE id = :job"),
    ("jobs.finished", "UPDATE jobs SET finished_at = NULL WHERE id = :job"),
    ("calls.doubt", "UPDATE calls SET effect = 'external', status = 'cancelled', intent_at = now() WHERE job_id = :job AND step = 1"),
    ("calls.at_rest", "UPDATE calls SET due_at = now() WHERE job_id = :job AND step = 1"),
    ("calls.live_job", "UPDATE calls SET status = 'pending', finished_at = NULL WHERE job_id = :job AND step = 2 AND position = 0"),
    ("usage.job", "UPDATE jobs SET output_tokens = output_tokens + 1 WHERE id = :job"),
    ("usage.job", "UPDATE jobs SET cost_usd = cost_usd + 0.000000001 WHERE id = :job"),
    ("usage.end", "UPDATE events SET data = jsonb_set(data, '{usage,input_tokens}', '7') WHERE job_id = :job AND type = 'job.succeeded'"),
]
AGED = "UPDATE jobs SET finished_at = finished_at - interval '1 hour' WHERE id <> :job RETURNING id"
LIVE = [
    ("jobs.woken", "UPDATE calls SET due_at = NULL WHERE job_id = :job"),
    ("jobs.woken", "UPDATE jobs SET phase = 'plan' WHERE id = :job"),
    ("families.line", "UPDATE jobs SET depth = 1 WHERE id = :job"),
    ("families.over", f"WITH p AS ({AGED}) UPDATE jobs SET parent_id = (SELECT id FROM p) WHERE id = :job"),
    ("families.line", "UPDATE jobs SET parent_id = (SELECT id FROM jobs WHERE id <> :job LIMIT 1) WHERE id = :job"),
    ("jobs.lease", "UPDATE jobs SET owner = 7, attempt = attempt + 1 WHERE id = :job"),  # a heartbeat under way renews its own attempt only
    ("jobs.scheduler", "UPDATE jobs SET deadline_at = now() - interval '1 hour' WHERE id = :job"),
    ("calls.lease", "UPDATE calls SET status = 'running' WHERE job_id = :job"),
    ("calls.live_job", "UPDATE jobs SET step = 2 WHERE id = :job"),
    ("events.end", "UPDATE events SET type = 'job.expired' WHERE job_id = :job AND seq = last_seq_of(:job)"),
]


WAITING = [
    ("jobs.waiting", "UPDATE calls SET held = NULL WHERE job_id = :job"),
    ("jobs.waiting", "UPDATE jobs SET reason = 'budget' WHERE id = :job"),
    ("jobs.waiting", "UPDATE jobs SET waiting_until = NULL WHERE id = :job"),
    ("calls.held", "UPDATE approvals SET status = 'expired', decided_at = now() WHERE job_id = :job"),
    ("calls.held", "UPDATE calls SET held = 'child', created_at = now() - interval '1 hour' WHERE job_id = :job"),
    ("approvals.pending", "UPDATE calls SET held = NULL WHERE job_id = :job"),
    ("approvals.bound", "UPDATE calls SET attempt = 1 WHERE job_id = :job AND guarded"),
    ("messages.numbered", "UPDATE messages SET number = 2 WHERE job_id = :job"),
    ("messages.numbered", "DELETE FROM messages WHERE job_id = :job"),
]


@pytest.fixture
def waiting(make: Make, database: Database) -> Job:
    """A job that waits for consent, with a message that nobody has taken up."""
    asks = {"policies": [{"tool": "shell", "action": "ask", "message": "Look first."}]}
    stepper = make([shell("echo one > a"), finish()])
    job = stepper.submit(agent=asks)
    while stepper.ring():
        pass
    job = stepper.job(job)
    assert job.status == "waiting"
    with database.transaction() as tx:
        steering.write(tx, stepper.runtime, jobs.get(tx, job.id, lock=True), "hurry", by="key_x")
    return job


def test_a_healthy_waiting_job(database: Database, waiting: Job) -> None:
    assert broken(database) == {}
    assert {finding.subject: finding.looked_at for finding in examination.examine(database)}[Subject.APPROVALS] == 1


@pytest.mark.parametrize(("check", "statement"), WAITING)
def test_damage_to_a_waiting_job_is_found(database: Database, waiting: Job, check: str, statement: str) -> None:
    damage(database, statement, job=waiting.id)
    assert check in broken(database)
    assert check in broken(database, waiting.id)


TOLD = [
    ("webhooks.told", "DELETE FROM deliveries WHERE job_id = :job"),
    ("deliveries.true", "UPDATE deliveries SET due_at = NULL WHERE job_id = :job"),
    ("deliveries.true", "UPDATE deliveries SET type = 'job.failed' WHERE job_id = :job"),
    ("webhooks.sealed", "UPDATE webhooks SET secret = 'whsec_x' WHERE job_id = :job"),
    (
        "webhooks.sealed",
        "UPDATE webhooks SET previous_secret = 'whsec_x', previous_until = now() + interval '1 hour' WHERE job_id = :job",
    ),
]


@pytest.fixture
def told(make: Make, database: Database) -> Job:
    """A job whose webhook hears of its end."""
    stepper = make([finish()])
    job = stepper.submit()
    endpoint = {"id": "wh_1", "tenant_id": job.tenant_id, "job_id": job.id, "url": "https://example.org", "events": ["job.succeeded"]}
    with database.transaction() as tx:
        tx.connection.execute(insert(webhooks).values(endpoint | {"secret": "sealed:x"}))
    return stepper.run(job)


def test_a_healthy_webhook(database: Database, told: Job) -> None:
    assert told.status == "succeeded"
    assert broken(database) == {}
    assert {finding.subject: finding.looked_at for finding in examination.examine(database)}[Subject.DELIVERIES] == 1


def test_what_a_webhook_was_not_told_while_it_was_another_is_not_missing(make: Make, database: Database) -> None:
    stepper = make([finish(), finish()])
    for change in ({"disabled_at": None, "disabled_reason": None}, {"events": ["job.succeeded"]}):
        job = stepper.submit(
            webhook={"url": "https://93.184.215.14/x", "events": ["job.failed" if "events" in change else "job.succeeded"]}
        )
        with database.transaction() as tx:
            webhook = webhook_rows.of_job(tx, job.id, job.tenant_id)
            assert webhook is not None
            if "events" not in change:
                webhook_rows.disable(tx, webhook.id, "Disabled on request.")
        assert stepper.run(job).status == "succeeded"
        with database.transaction() as tx:
            webhook_rows.change(tx, webhook.id, change)
        assert "webhooks.told" not in broken(database)
    damage(database, "UPDATE webhooks SET changed_at = now() - interval '1 hour'")
    assert len(broken(database)["webhooks.told"]) == 2


@pytest.mark.parametrize(("check", "statement"), TOLD)
def test_damage_to_a_delivery_is_found(database: Database, told: Job, check: str, statement: str) -> None:
    damage(database, statement, job=told.id)
    assert check in broken(database)
    assert check in broken(database, told.id)


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


FORKED = [
    ("forks.workspace", "UPDATE events SET data = data || '{\"workspace\": null}' WHERE job_id = :job AND type = 'job.forked'"),
    ("forks.workspace", "UPDATE events SET data = data - 'workspace' WHERE job_id = :source AND type = 'call.finished'"),
    (
        "forks.workspace",  # of an earlier release, which did not write it down
        "UPDATE events SET data = data - 'workspace' WHERE job_id = :job AND type = 'job.forked'",
        "UPDATE jobs SET workspace = first_workspace WHERE id = :job",
    ),
]


@pytest.mark.parametrize(("check", "statements"), [(check, statements) for check, *statements in FORKED])
@pytest.mark.parametrize("of_a_fork", [False, True])
def test_damage_to_a_fork_is_found(
    database: Database, stepper: Stepper, ended: Job, check: str, statements: list[str], of_a_fork: bool
) -> None:
    job = fork(stepper, fork(stepper, ended, 2) if of_a_fork else ended, 1)
    assert broken(database) == {}
    for statement in statements:
        damage(database, statement, **{name: value for name, value in (("job", job.id), ("source", ended.id)) if f":{name}" in statement})
    assert list(broken(database, job.id)) == [check]


def test_what_a_fork_of_an_earlier_release_began_with_is_not_guessed(database: Database, stepper: Stepper, ended: Job) -> None:
    job = fork(stepper, ended, 1)
    damage(database, "UPDATE events SET data = data - 'workspace' WHERE job_id = :job AND type = 'job.forked'", job=job.id)
    assert broken(database) == {}
    assert stepper.run(job).workspace != job.workspace
    assert broken(database) == {}


def broken_objects(database: Database, store: MemoryStore, job_id: str | None = None) -> dict[str, list[str]]:
    found = objects.examine_objects(database, store, job_id=job_id)
    return {finding.name: [f"{item.subject}: {item.detail}" for item in finding.first] for finding in found if not finding.holds}


@pytest.fixture
def kept(make: Make, store: MemoryStore, database: Database) -> Job:
    """A job with an input file, a long observation, an artifact and two snapshots, beside another job with the same files."""
    code = "print('x' * 5000); open('data', 'w').write('y' * 100)"
    stepper = make([python(code), shell("echo more > more"), {"tool": "save_artifact", "arguments": {"path": "data"}}, finish()])
    blob = BlobStore(store, stepper.tenant_id).put(b"input")
    with database.transaction() as tx:
        files.add(
            tx,
            file_id="file_1",
            tenant_id=stepper.tenant_id,
            filename="in",
            size=5,
            sha256=blob.sha256,
            blob_key=blob.key,
            content_type="x",
        )
    for _ in range(2):
        job = stepper.run(stepper.submit(inputs=[{"file_id": "file_1"}]))
        assert job.status == "succeeded"
    return job


def test_healthy_objects(database: Database, store: MemoryStore, kept: Job) -> None:
    found = {finding.name: finding for finding in objects.examine_objects(database, store)}
    assert [finding.name for finding in found.values() if not finding.holds] == []
    assert found["objects.manifests"].looked_at == 3  # the second job's snapshots equal the first's
    assert found["objects.present"].looked_at == 8  # input, data, more, three manifests, two observations
    one = {finding.name: finding for finding in objects.examine_objects(database, store, job_id=kept.id)}
    assert list(one) == ["objects.manifests", "objects.present"]
    assert one["objects.present"].looked_at == 7
    assert all(finding.holds for finding in one.values())


@pytest.mark.parametrize("of_one_job", [False, True])
def test_every_missing_or_changed_object_is_found(database: Database, store: MemoryStore, kept: Job, of_one_job: bool) -> None:
    job_id = kept.id if of_one_job else None
    healthy = {item.key: store.get(item.key) for item in store.stored("")}
    others = {key for key in healthy if f"/{kept.tenant_id}/job_" in key and kept.id not in key} if of_one_job else set()
    for key, data in healthy.items():
        if key in others:
            continue
        store.delete(key)
        assert any(key.split("/")[-1] in line for lines in broken_objects(database, store, job_id).values() for line in lines), key
        store.put(key, data + b"!")
        sized = "observations/" not in key  # how long an observation is, no row tells
        assert bool(broken_objects(database, store, job_id)) is sized
        store.put(key, data)
    assert broken_objects(database, store, job_id) == {}


def test_what_nothing_refers_to_is_told_once_it_is_old(database: Database, store: MemoryStore, kept: Job) -> None:
    key = f"observations/{kept.tenant_id}/{kept.id}/call_x/1"
    store.put(key, b"of a lost attempt")
    store.put("elsewhere/x", b"not ours")
    assert broken_objects(database, store) == {}
    for old in (key, "elsewhere/x"):
        store.put_at[old] -= timedelta(days=2)
    assert [line.split(":")[0] for line in broken_objects(database, store)["objects.referenced"]] == [key]
    assert broken_objects(database, store, kept.id) == {}


def test_the_listing_is_taken_in_pages(database: Database, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, kept: Job) -> None:
    monkeypatch.setattr(references, "PAGE", 2)
    assert broken_objects(database, store) == {}
    assert broken_objects(database, store, kept.id) == {}


def test_an_overdue_schedule_is_told(database: Database, stepper: Stepper, ended: Job) -> None:
    spec = JobSpec(instructions="x").model_dump(mode="json")
    row = {"tenant_id": stepper.tenant_id, "cron": "0 * * * *", "timezone": "UTC", "spec": spec, "overlap": "skip", "catch_up": "latest"}
    with database.transaction() as tx:
        for name, minutes in (("sched_late", 11), ("sched_soon", 9)):
            schedules.add(tx, row | {"id": name, "next_at": func.now() - timedelta(minutes=minutes)})
    (found,) = (finding for finding in examination.examine(database) if finding.name == "schedules.due")
    assert ([item.subject for item in found.first], found.looked_at, found.severity) == (["sched_late"], 2, Severity.NOTICE)
    assert broken(database, ended.id) == {}


def test_every_check_has_its_damage() -> None:
    assert {name for name, *_ in (*ENDED, *LIVE, *WAITING, *TOLD, *FORKED)} | {"schedules.due"} == set(_CHECKS)
    assert len(_CHECKS) == len(examination.CHECKS)


def test_only_the_first_offenders_are_named(database: Database, stepper: Stepper) -> None:
    for _ in range(FIRST + 2):
        stepper.submit()
    damage(database, "UPDATE jobs SET due_at = NULL")
    (woken,) = (finding for finding in examination.examine(database) if finding.name == "jobs.woken")
    assert (woken.count, len(woken.first)) == (FIRST + 2, FIRST)
