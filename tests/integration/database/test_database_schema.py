"""The schema: migrations that end where the tables say, and the lifecycle that the database itself keeps."""

from __future__ import annotations

import threading

import pytest
from pydantic import SecretStr
from sqlalchemy import func, text, update
from sqlalchemy.exc import DBAPIError

from dualtrack.db import migrate
from dualtrack.db.engine import Database
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.domain.errors import DatabaseUnavailable
from dualtrack.domain.lifecycle import TRANSITIONS, JobStatus
from dualtrack.settings import DatabaseSettings

from .conftest import new_job


def test_the_migrated_database_is_what_the_tables_say(database: Database) -> None:
    assert migrate.drift(database) == []
    migrate.require_current(database)
    migrate.upgrade(database)  # a second time does nothing


def test_two_processes_that_migrate_at_once_do_not_clash(database_url: str) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        opened = Database(DatabaseSettings(url=SecretStr(database_url)))
        try:
            migrate.upgrade(opened)
        except BaseException as error:
            failures.append(error)
        finally:
            opened.close()

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_an_empty_database_is_told_how_to_be_made_current(database_url: str) -> None:
    opened = Database(DatabaseSettings(url=SecretStr(database_url)))
    with pytest.raises(DatabaseUnavailable, match="dualtrack migrate"):
        migrate.require_current(opened)
    opened.close()


def test_a_downgrade_leaves_nothing_behind(database: Database) -> None:
    from alembic import command

    with database.engine.connect() as connection:
        config = migrate._config()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        connection.commit()
    with database.transaction() as tx:
        left = tx.connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version'"))
        assert left.all() == []
        functions = text("SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace")
        assert tx.connection.execute(functions).all() == []


def test_the_trigger_allows_exactly_the_table_of_transitions(database: Database) -> None:
    allowed = {(edge.source, edge.target) for edge in TRANSITIONS}
    waiting = {"waiting_since": func.now(), "waiting_until": func.now(), "reason": "paused", "due_at": None}
    for source in JobStatus:
        for target in JobStatus:
            if source is target:
                continue
            with database.transaction() as tx:
                job_id = new_job(tx)
                finished = {"phase": "none", "due_at": None, "finished_at": func.now()}
                tx.connection.execute(text("SET LOCAL session_replication_role = replica"))  # triggers off, to get into `source`
                values = {"status": source.value} | (finished if source.value in {"succeeded", "failed", "cancelled", "expired"} else {})
                values |= waiting if source is JobStatus.WAITING else {}
                tx.connection.execute(update(jobs_table).where(jobs_table.c.id == job_id).values(values))
            values = {
                "status": target.value,
                "phase": "none",
                "due_at": None,
                "finished_at": None,
                "waiting_since": None,
                "waiting_until": None,
            }
            values |= waiting if target is JobStatus.WAITING else {}
            if target.value in {"succeeded", "failed", "cancelled", "expired"}:
                values["finished_at"] = func.now()
            change = update(jobs_table).where(jobs_table.c.id == job_id).values(values)
            if (source, target) in allowed:
                with database.transaction() as tx:
                    tx.connection.execute(change)
            else:
                with pytest.raises(DBAPIError, match="not in the lifecycle"), database.transaction() as tx:
                    tx.connection.execute(change)
