"""Connections on which each statement is a transaction, with next to nothing between the caller and the driver.

To take a connection from SQLAlchemy's pool and give it back costs as much as a short statement on it.
"""

from __future__ import annotations

import contextlib
import select
import threading
from collections.abc import Sequence
from typing import Any, Final, Protocol, cast

import psycopg
from psycopg.rows import tuple_row
from sqlalchemy import Engine

_MAX_IDLE: Final = 8


class Runs(Protocol):
    """What runs statements: a transaction, or a connection on which each is one."""

    def execute(self, sql: bytes, parameters: Sequence[Any]) -> psycopg.Cursor[Any]:
        """Run SQL with parameters `$1` and so on; the cursor is good until the next one."""
        ...


class SwiftConnection:
    """One connection; rows are tuples."""

    def __init__(self, driver: psycopg.Connection[Any]) -> None:
        self._driver = driver
        self._cursor: psycopg.RawCursor[Any] = psycopg.RawCursor(driver, row_factory=tuple_row)
        self._poll = select.poll()
        self._poll.register(driver.fileno(), select.POLLIN)

    def execute(self, sql: bytes, parameters: Sequence[Any]) -> psycopg.Cursor[Any]:
        """As `Runs`."""
        return self._cursor.execute(sql, parameters)

    @property
    def usable(self) -> bool:
        """Whether the server has said nothing unasked, which on an idle connection is that it hangs up."""
        return not self.broken and not self._poll.poll(0)

    @property
    def broken(self) -> bool:
        """Whether it is lost."""
        return self._driver.closed or self._driver.broken

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(psycopg.Error):
            self._driver.close()


class SwiftPool:
    """As many connections as threads run statements at once; of those that nobody needs some are kept. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        """`engine` makes the connections; it must not keep them."""
        self._engine: Final = engine
        self._idle: list[SwiftConnection] = []  # the last one used has its statements prepared
        self._lock = threading.Lock()

    def take(self) -> SwiftConnection:
        """One that nobody else has. Raises the driver's and SQLAlchemy's errors when the server can't be reached."""
        while True:
            with self._lock:
                found = self._idle.pop() if self._idle else None
            if found is None:
                return self._open()
            if found.usable:
                return found
            found.close()

    def give_back(self, connection: SwiftConnection) -> None:
        """For others to take."""
        with self._lock:
            keep = not connection.broken and len(self._idle) < _MAX_IDLE
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()

    def close(self) -> None:
        """Hang up all that nobody has taken."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _open(self) -> SwiftConnection:
        pooled = self._engine.raw_connection()
        driver = cast("psycopg.Connection[Any]", pooled.driver_connection)
        pooled.detach()
        return SwiftConnection(driver)
