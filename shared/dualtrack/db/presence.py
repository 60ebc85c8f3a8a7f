"""Who is alive: every worker process holds a session-level advisory lock on a connection of its own.

PostgreSQL releases it the moment the process or its connection is gone, so "is the owner of this claim dead?" is a question
to the database, not a guess from a clock (a redelivered message proves nothing: its sender may only have lost its broker).

On the same connection the process hears when it is called (`call`), within milliseconds of the caller's commit. A call may be lost with the
connection, so whoever is called must look by itself now and then too.
"""

from __future__ import annotations

import logging
import secrets
import select
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Final

from sqlalchemy import Connection, text

from dualtrack.db.engine import Database, Transaction
from dualtrack.domain.limits import PRESENCE_RETURN_S

_LOG: Final = logging.getLogger(__name__)

# pg_locks shows a bigint advisory key as classid (high half) and objid (low half), objsubid 1
# (PostgreSQL manual, "pg_locks").
_HELD_SQL: Final = """SELECT {columns} FROM pg_locks l WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
_KEY_SQL: Final = "(l.classid::bigint << 32 | l.objid::bigint)"
# A server that has just been started has no session lock of anybody: the living are given time to take theirs again. Otherwise all work
# under way would be done twice, at once. After the crash of one of its processes it ends all sessions and goes on without a new start,
# but discards its statistics. The database's own setting of that name wins; the tests use it.
RETURN_SETTING: Final = "dualtrack.presence_return_s"
_RETURN_SQL: Final = f"coalesce(nullif(current_setting('{RETURN_SETTING}', true), ''), '{PRESENCE_RETURN_S}')::float"
_BEGAN_SQL: Final = "greatest(pg_postmaster_start_time(), (SELECT stats_reset FROM pg_stat_bgwriter))"
_SETTLED_SQL: Final = f"clock_timestamp() > {_BEGAN_SQL} + make_interval(secs => {_RETURN_SQL})"
# The keys of the living are read once for a statement, not once for each row: the subselect names nothing of the row.
DEAD_OWNER_SQL: Final = f"({_SETTLED_SQL} AND {{owner}} NOT IN ({_HELD_SQL.format(columns=_KEY_SQL)}))"
_RETRY_S: Final = 0.1
_TAKE_SQL: Final = text("SELECT pg_try_advisory_lock(:key)")
# The server may still hold the lock for a session whose network is gone; that session is ours, and of no use any more.
_EVICT_SQL: Final = text(
    _HELD_SQL.format(columns="pg_terminate_backend(l.pid)") + f" AND {_KEY_SQL} = CAST(:key AS bigint) AND l.pid <> pg_backend_pid()"
)


_CHANNEL: Final = "dualtrack_worker_{key}"
_CALL_SQL: Final = text("SELECT pg_notify(:channel, '')")


def call(tx: Transaction, owners: Iterable[int]) -> None:
    """Have the processes with these keys look at their work at once, as soon as this transaction is committed."""
    for owner in set(owners):
        tx.connection.execute(_CALL_SQL, {"channel": _CHANNEL.format(key=owner)})


class Presence:
    """This process's mark in the database; `key` is written as `owner` into what it claims.

    Once started, a thread holds the lock, and takes it again within a moment when its connection is lost; until then others may take its
    claims over, which fencing makes harmless.
    """

    def __init__(self, database: Database, *, check_s: float) -> None:
        """`check_s`: seconds between two looks at a quiet connection."""
        self._database = database
        self._check_s = check_s
        self._connection: Connection | None = None
        self._stop = threading.Event()
        self._woken, self._waker = socket.socketpair()
        self._called: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)
        self.key: Final = secrets.randbits(62) | 1 << 61  # never 0, positive in a bigint

    def on_call(self, action: Callable[[], None]) -> None:
        """Do `action`, which must be quick, on the presence's thread whenever this process is called. To be said before `start`."""
        self._called = action

    def start(self) -> None:
        """Hold the lock and keep it. Raises SQLAlchemy's errors when the database can't be reached now."""
        self._take()
        self._thread.start()

    def close(self) -> None:
        """Give the lock back: claims of this process are free at once."""
        self._stop.set()
        self._waker.close()  # which the other end hears
        if self._thread.is_alive():
            self._thread.join(timeout=2 * self._check_s + 10)
        self._woken.close()
        self._drop()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if self._connection is None:
                    self._take()
                self._wait()
                if self._connection is not None and not self._stop.is_set():
                    self._connection.execute(text("SELECT 1"))
            except Exception as error:  # noqa: BLE001 - whatever happened, the presence has to come back
                _LOG.warning("presence lost, taking it again: %s", type(error).__name__)
                self._drop()
                self._stop.wait(_RETRY_S)

    def _wait(self) -> None:
        """Until the server says something unasked (that this process is called, or that it hangs up), `close`, or `check_s` have passed."""
        if self._connection is not None:
            raw = self._connection.connection.dbapi_connection
            poll = select.poll()  # `select` takes no descriptor above 1023, of which an executor may have many
            poll.register(raw.fileno(), select.POLLIN)  # type: ignore[union-attr] # psycopg's connection
            poll.register(self._woken, select.POLLIN)
            poll.poll(1000 * self._check_s)

    def _take(self) -> None:
        connection = self._database.vital.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            while not connection.execute(_TAKE_SQL, {"key": self.key}).scalar_one():
                connection.execute(_EVICT_SQL, {"key": self.key})
                if self._stop.wait(_RETRY_S):
                    break
            raw = connection.connection.dbapi_connection
            raw.add_notify_handler(lambda _: self._called())  # type: ignore[union-attr] # psycopg's connection
            connection.execute(text(f"LISTEN {_CHANNEL.format(key=self.key)}"))
        except BaseException:
            connection.invalidate()
            connection.close()
            raise
        self._connection = connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()
