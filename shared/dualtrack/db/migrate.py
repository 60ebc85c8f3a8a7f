"""Bringing a database to the current schema, and proving that it is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from dualtrack.db import hook_tables  # noqa: F401 - its tables belong to the same metadata
from dualtrack.db.engine import Database
from dualtrack.db.tables import metadata
from dualtrack.domain.errors import DatabaseUnavailable

_LOCK_KEY: Final = 7_245_110_632
"""Advisory lock of migrations: two processes that start at once migrate one after the other."""
_LOCK_TIMEOUT: Final = "10s"
"""A migration that can't get a table lock this soon fails, rather than blocking everybody behind it."""


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def upgrade(database: Database, revision: str = "head") -> None:
    """Run all missing migrations; does nothing on a current database. Raises `DatabaseUnavailable`."""
    database.check()
    config = _config()
    with database.engine.connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _LOCK_KEY})
        connection.commit()
        try:
            connection.execute(text(f"SET lock_timeout = '{_LOCK_TIMEOUT}'"))
            connection.commit()
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
            connection.commit()
        finally:
            connection.rollback()
            connection.execute(text("RESET lock_timeout"))
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _LOCK_KEY})
            connection.commit()


def revision(database: Database, message: str) -> None:
    """Write a new migration from the difference between the tables and the database (for developers)."""
    config = _config()
    with database.engine.connect() as connection:
        config.attributes["connection"] = connection
        command.revision(config, message=message, autogenerate=True)


def drift(database: Database) -> list[Any]:
    """Differences between the migrated database and `db.tables`; empty when there are none."""
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        return list(compare_metadata(context, metadata))


def require_current(database: Database) -> None:
    """Raise `DatabaseUnavailable` unless the schema is this code's or newer (releases are compatible one step back)."""
    with database.transaction() as tx:
        at = MigrationContext.configure(tx.connection).get_current_revision()
    script = ScriptDirectory.from_config(_config())
    known = {found.revision for found in script.walk_revisions()}
    if at is None or (at in known and at != script.get_current_head()):
        raise DatabaseUnavailable(
            "The database schema is missing or old: run `dualtrack migrate` (compose does so by its `migrate` service)."
        )
