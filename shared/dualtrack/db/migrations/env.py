"""Alembic's entry point: `dualtrack.db.migrate` hands over an open connection, so no address stands in any file."""

from __future__ import annotations

from alembic import context

from dualtrack.db.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, compare_type=True, compare_server_default=True)
with context.begin_transaction():
    context.run_migrations()
