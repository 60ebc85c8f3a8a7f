"""Connections: one that is refused or cut is one clear error, and none has a transaction open where there must be none."""

from __future__ import annotations

import select as io

import pytest
from pydantic import SecretStr
from sqlalchemy import text

from dualtrack.db import jobs
from dualtrack.db.engine import Database, assert_no_transaction
from dualtrack.domain.errors import DatabaseUnavailable
from dualtrack.settings import DatabaseSettings

from .conftest import wait_for


def test_no_model_or_tool_is_called_inside_a_transaction(database: Database) -> None:
    assert_no_transaction()
    with pytest.raises(AssertionError, match="transaction is open"), database.transaction():
        assert_no_transaction()
    assert_no_transaction()


def test_a_server_that_is_away_is_one_clear_error() -> None:
    away = Database(DatabaseSettings(url=SecretStr("postgresql+psycopg://u:secret@127.0.0.1:1/x")))
    with pytest.raises(DatabaseUnavailable) as refused:
        away.check()
    assert "DUALTRACK_DATABASE__URL" in refused.value.message
    assert "secret" not in str(refused.value)
    away.close()


def test_a_connection_that_is_cut_inside_a_transaction_is_one_clear_error(database: Database) -> None:
    with pytest.raises(DatabaseUnavailable), database.transaction() as tx:
        tx.connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
    database.check()


def test_a_session_that_was_ended_for_idling_in_a_transaction_is_one_clear_error(database: Database) -> None:
    with pytest.raises(DatabaseUnavailable), database.transaction() as tx:
        jobs.progress(tx, "no job")
        driver = tx.connection.connection.driver_connection
        assert driver is not None
        tx.connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 50"))
        wait_for(lambda: bool(io.select([driver.fileno()], [], [], 0)[0]))
        jobs.progress(tx, "no job")
    database.check()
