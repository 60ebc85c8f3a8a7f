"""Alembic migrations; run by `dualtrack.db.migrate`."""
