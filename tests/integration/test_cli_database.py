"""`dualtrack migrate` and `dualtrack keys create` on a real PostgreSQL."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from pydantic import SecretStr
from typer.testing import CliRunner, Result

from cli.main import app
from cli.outcome import Exit
from dualtrack.db import budgets, jobs, migrate, tenants, webhooks
from dualtrack.db.engine import Database
from dualtrack.domain.job import JobSpec
from dualtrack.domain.usage import Usage
from dualtrack.settings import DatabaseSettings
from dualtrack.webhooks.signature import new_secret

Run = Callable[..., Result]


@pytest.fixture
def run(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("DUALTRACK_DATABASE__URL", database_url)
    # The command's own variables start with the settings' prefix: they must not be taken for settings.
    monkeypatch.setenv("DUALTRACK_API_KEY", "dt_x")
    monkeypatch.setenv("DUALTRACK_BASE_URL", "http://127.0.0.1:1")

    def invoke(*arguments: str) -> Result:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = Database(DatabaseSettings(url=SecretStr(database_url)))
    yield opened
    opened.close()


def test_migrate_brings_an_empty_database_up_and_does_nothing_twice(run: Run, database: Database) -> None:
    result = run("migrate")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("The database is at revision ")
    migrate.require_current(database)
    again = run("migrate", "--json")
    assert again.exit_code == 0
    assert json.loads(again.stdout)["revision"] in result.stdout


def test_a_created_key_opens_its_tenant(run: Run, database: Database) -> None:
    run("migrate")
    result = run("keys", "create", "laptop")
    assert result.exit_code == 0, result.stderr
    assert "can't be shown again" in result.stderr
    other = json.loads(run("keys", "create", "ci", "--tenant", "acme", "--json").stdout)
    assert (other["name"], other["tenant"]) == ("ci", "acme")
    with database.transaction() as tx:
        mine = tenants.caller(tx, result.stdout.strip())
        theirs = tenants.caller(tx, other["key"])
        assert mine is not None
        assert theirs is not None
        assert mine.tenant_id == tenants.ensure_tenant(tx)
        assert theirs.tenant_id == tenants.ensure_tenant(tx, "acme") != mine.tenant_id


def test_keys_need_a_migrated_database(run: Run) -> None:
    result = run("keys", "create", "laptop")
    assert (result.exit_code, result.stdout) == (Exit.UNREACHABLE, "")
    assert "dualtrack migrate" in result.stderr


def test_secrets_are_sealed_by_command_and_the_doctor_tells_until_then(
    run: Run, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("migrate")
    assert run("seal-secrets").exit_code == Exit.USAGE
    with database.transaction() as tx:
        tenant = tenants.ensure_tenant(tx)
        webhooks.add(tx, webhook_id="wh_1", tenant_id=tenant, url="https://x.example/", events=(), secret=new_secret())
    told = run("doctor", "--no-objects")
    assert told.exit_code == 0  # a note: it is the operator's choice
    assert "wh_1: its signing secret lies in the database in clear" in told.stdout
    first, second = (Fernet.generate_key().decode() for _ in range(2))
    monkeypatch.setenv("DUALTRACK_WEBHOOKS__SECRET_KEYS", json.dumps([first]))
    assert run("seal-secrets").stdout == "1 secrets encrypted with the first key, 0 were already.\n"
    assert "in clear" not in run("doctor", "--no-objects").stdout
    monkeypatch.setenv("DUALTRACK_WEBHOOKS__SECRET_KEYS", json.dumps([second]))
    lost = run("seal-secrets", "--json")
    assert (lost.exit_code, json.loads(lost.stdout)["unreadable"]) == (Exit.JOB_FAILED, ["wh_1"])
    monkeypatch.setenv("DUALTRACK_WEBHOOKS__SECRET_KEYS", json.dumps([second, first]))
    assert json.loads(run("seal-secrets", "--json").stdout) == {"object": "resealing", "sealed": 1, "current": 0, "unreadable": []}


def test_the_doctor_tells_what_holds_and_what_does_not(run: Run, database: Database) -> None:
    run("migrate")
    healthy = run("doctor")
    assert (healthy.exit_code, healthy.stderr) == (0, "")
    assert healthy.stdout.splitlines()[-1] == "All promises hold."
    with database.transaction() as tx:
        tenant = tenants.ensure_tenant(tx)
        jobs.create(
            tx,
            job_id="job_1",
            tenant_id=tenant,
            spec=JobSpec(instructions="x"),
            workspace=None,
            key_id=None,
            traceparent="",
            request_traceparent="",
            ring_s=5,
        )
    result = run("doctor")
    assert result.exit_code == Exit.JOB_FAILED
    assert "BROKEN  events.first         1 of 1 jobs break this" in result.stdout
    assert "job_1: 0 job.queued events, the first event is missing" in result.stdout
    document = json.loads(run("doctor", "--job", "job_1", "--json").stdout)
    assert (document["ok"], [check["name"] for check in document["checks"] if check["violations"]]) == (False, ["events.first"])
    unknown = run("doctor", "--job", "job_2")
    assert (unknown.exit_code, unknown.stdout) == (Exit.API_ERROR, "")
    assert "job_2" in unknown.stderr


def test_garbage_is_counted_and_collected(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUALTRACK_OBJECTS__PATH", str(tmp_path))
    run("migrate")
    lost = tmp_path / "observations" / "ten_1" / "job_1" / "call_1" / "1"
    lost.parent.mkdir(parents=True)
    lost.write_text("lost")
    assert json.loads(run("gc", "--json").stdout)["objects"] == 0
    os.utime(lost, (1_000_000_000, 1_000_000_000))
    counted = run("gc", "--dry-run")
    assert (counted.exit_code, counted.stdout) == (0, "1 objects (4 bytes), 0 idempotency keys and 0 deliveries would be deleted.\n")
    assert lost.exists()
    assert json.loads(run("gc", "--json").stdout)["bytes"] == 4
    assert not lost.exists()


@pytest.mark.parametrize(
    ("url", "status", "words"),
    [
        ("postgresql+psycopg://dualtrack:secret@127.0.0.1:1/dualtrack", Exit.UNREACHABLE, "DUALTRACK_DATABASE__URL"),
        ("postgresql+psycopg://x:y:z/name", Exit.USAGE, "DUALTRACK_DATABASE__URL"),
        ("no address", Exit.USAGE, "DUALTRACK_DATABASE__URL"),
        ("postgresql+nothing://x/y", Exit.USAGE, "DUALTRACK_DATABASE__URL"),
    ],
)
def test_no_database(run: Run, monkeypatch: pytest.MonkeyPatch, url: str, status: int, words: str) -> None:
    monkeypatch.setenv("DUALTRACK_DATABASE__URL", url)
    result = run("migrate")
    assert (result.exit_code, result.stdout) == (status, "")
    assert words in result.stderr
    assert "secret" not in result.stderr


def test_wrong_settings_are_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUALTRACK_DATABASE__POOL_SIZE", "many")
    result = run("migrate")
    assert result.exit_code == Exit.USAGE
    assert "DUALTRACK_DATABASE__POOL_SIZE" in result.stderr


def _store(directory: Path, database_url: str) -> None:
    path = directory / ".dualtrack" / "credentials.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"base_url": "http://127.0.0.1:1", "api_key": "dt_x", "database_url": database_url}))
    path.chmod(0o600)


def test_the_platform_of_the_directory_names_its_database(
    run: Run, database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _store(tmp_path, "postgresql+psycopg://dualtrack:secret@127.0.0.1:1/dualtrack")
    assert run("migrate").exit_code == 0  # the environment wins
    monkeypatch.delenv("DUALTRACK_DATABASE__URL")
    result = run("keys", "create", "laptop")
    assert (result.exit_code, result.stdout) == (Exit.UNREACHABLE, "")
    assert "credentials.json" in result.stderr
    assert "secret" not in result.stderr
    _store(tmp_path, "nonsense")
    assert run("migrate").exit_code == Exit.USAGE
    _store(tmp_path, database_url)
    assert run("migrate").exit_code == 0
    result = run("keys", "create", "laptop")
    assert result.exit_code == 0, result.stderr
    with database.transaction() as tx:
        assert tenants.caller(tx, result.stdout.strip()) is not None
    assert run("migrate", "--base-url", "http://other:1").exit_code == Exit.UNREACHABLE  # the file is of another platform


@pytest.mark.usefixtures("one_day")
def test_a_keys_day_is_limited_and_listed(run: Run, database: Database) -> None:
    run("migrate")
    key = run("keys", "create", "laptop").stdout.strip()
    with database.transaction() as tx:
        caller = tenants.caller(tx, key)
        assert caller is not None
        tx.connection.execute(budgets.adding(caller.key_id, 3, Usage(100, 20)))
    limited = run("keys", "limit", caller.key_id, "--day-tokens", "1000", "--day-cost", "2.50", "--json")
    assert limited.exit_code == 0, limited.stderr
    (row,) = json.loads(limited.stdout)["data"]
    assert (row["id"], row["day_tokens"], row["day_cost_usd"], row["tokens_today"]) == (caller.key_id, 1000, "2.5", 120)
    cleared = run("keys", "limit", caller.key_id, "--clear", "--day-tokens", "7")
    assert cleared.exit_code == 0, cleared.stderr
    (line,) = run("keys", "list").stdout.splitlines()[1:]
    assert line.split("\t") == [caller.key_id, "default", "laptop", key[:9], "7", "-", "120", "0"]
    for wrong in (("--day-cost", "much"), ("--day-cost", "-1"), ()):
        assert run("keys", "limit", caller.key_id, *wrong).exit_code == Exit.USAGE
    assert "There is no API key" in run("keys", "limit", "key_unknown", "--day-tokens", "7").stderr


def test_a_key_is_taken_back(run: Run, database: Database) -> None:
    run("migrate")
    lost, kept = (run("keys", "create", name).stdout.strip() for name in ("lost", "kept"))
    with database.transaction() as tx:
        caller = tenants.caller(tx, lost)
    assert caller is not None
    result = run("keys", "revoke", caller.key_id)
    assert (result.exit_code, result.stdout) == (0, f"{caller.key_id} is revoked.\n"), result.stderr
    with database.transaction() as tx:
        assert tenants.caller(tx, lost) is None
        assert tenants.caller(tx, kept) is not None
    assert [line.split("\t")[2] for line in run("keys", "list").stdout.splitlines()[1:]] == ["kept"]
    for gone in (caller.key_id, "key_unknown"):
        again = run("keys", "revoke", gone)
        assert again.exit_code == Exit.API_ERROR
        assert "no API key" in again.stderr
