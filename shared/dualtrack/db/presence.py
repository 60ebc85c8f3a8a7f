"""Who is alive: every worker process holds a session-level advisory lock on a connection of its own.

PostgreSQL releases it the moment the process or its connection is gone, so "is the owner of this claim dead?" is a question
to the database, not a guess from a clock (a redelivered message proves nothing: its sender may only have lost its broker).
"""

from __future__ import annotations

import logging
import secrets
import threading
from typing import Final

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from dualtrack.db.engine import Database

_LOG: Final = logging.getLogger(__name__)

# pg_locks shows a bigint advisory key as classid (high half) and objid (low half), objsubid 1
# (PostgreSQL manual, "pg_locks").
DEAD_OWNER_SQL: Final = """NOT EXISTS (
    SELECT 1 FROM pg_locks l WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.classid::bigint = ({owner} >> 32) AND l.objid::bigint = ({owner} & 4294967295)
)"""


class Presence:
    """This process's mark in the database; `key` is written as `owner` into what it claims.

    `renew` takes the lock again after the connection was lost; until then others may take its claims over, which fencing makes harmless.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self.key: Final = secrets.randbits(62) | 1 << 61  # never 0, positive in a bigint

    def renew(self) -> None:
        """Hold the lock, reconnecting if need be. Raises nothing: the next heartbeat tries again."""
        with self._lock:
            try:
                if self._connection is not None:
                    self._connection.execute(text("SELECT 1"))
                    return
                connection = self._database.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
                connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": self.key})
                self._connection = connection
            except SQLAlchemyError as error:
                _LOG.warning("presence lost, trying again: %s", type(error).__name__)
                self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Give the lock back: claims of this process are free at once."""
        with self._lock:
            self._drop()
