"""The one clock that all processes agree on."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import func, select

from dualtrack.db.engine import Transaction


def now(tx: Transaction) -> datetime:
    """The database's time, aware, UTC: a process's own may be wrong by minutes."""
    found: datetime = tx.connection.execute(select(func.clock_timestamp())).scalar_one()
    return found
