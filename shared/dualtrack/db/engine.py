"""The connection pool and the unit of work: the only place that commits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from dualtrack.domain.errors import DatabaseUnavailable
from dualtrack.faults import Fault, point
from dualtrack.settings import DatabaseSettings

_LOG: Final = logging.getLogger(__name__)
_IDLE_MS: Final = 30_000
_LOCK_MS: Final = 10_000
_open: Final = threading.local()


class Transaction:
    """One open transaction and what has to happen once it is committed."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._after: list[Callable[[], None]] = []

    def after_commit(self, action: Callable[[], None]) -> None:
        """Do `action` once the commit has succeeded (ring, emit a span); never when it has not."""
        self._after.append(action)

    def committed(self) -> None:
        """Run what was registered, for `Database` only; the commit stands whatever comes of it, so a failure is logged."""
        for action in self._after:
            try:
                action()
            except Exception:  # noqa: BLE001 - whatever it is, the others have their turn
                _LOG.exception("an action after a commit failed")


class Database:
    """Pools of PostgreSQL connections. Thread-safe."""

    def __init__(self, settings: DatabaseSettings, *, application: str = "dualtrack") -> None:
        self.engine: Final = _engine(settings, application, pool_size=settings.pool_size, max_overflow=settings.pool_overflow)
        # Presence and heartbeats must not wait behind work for a connection.
        self.vital: Final = _engine(settings, f"{application}-vital", pool_size=2, max_overflow=2)

    @contextmanager
    def transaction(self, *, vital: bool = False) -> Iterator[Transaction]:
        """A transaction: committed at the end of the block, rolled back when it raises, then the after-commit actions.

        `vital` takes one of the connections kept for heartbeats.

        Raises:
            DatabaseUnavailable: the server can't be reached or broke the connection; nothing was committed, except that
                a connection cut during the commit itself leaves it unknown (every caller writes under a fencing token or a natural key).
        """
        try:
            with (self.vital if vital else self.engine).begin() as connection:
                transaction = Transaction(connection)
                _open.depth = getattr(_open, "depth", 0) + 1
                try:
                    yield transaction
                    point(Fault.COMMIT)
                finally:
                    _open.depth -= 1
        except OperationalError as error:
            raise DatabaseUnavailable(
                "The database can't be reached or broke the connection; check PostgreSQL and DUALTRACK_DATABASE__URL."
            ) from error
        except PoolTimeout as error:
            raise DatabaseUnavailable(
                "All database connections are busy: try again, or raise DUALTRACK_DATABASE__POOL_OVERFLOW."
            ) from error
        except DBAPIError as error:
            if error.connection_invalidated:
                raise DatabaseUnavailable("The database broke the connection.") from error
            raise
        point(Fault.COMMITTED)
        transaction.committed()

    def check(self) -> None:
        """Raise `DatabaseUnavailable` unless a statement can be run now."""
        with self.transaction() as tx:
            tx.connection.execute(text("SELECT 1"))

    def close(self) -> None:
        """Give all pooled connections back."""
        self.engine.dispose()
        self.vital.dispose()


def _engine(settings: DatabaseSettings, application: str, *, pool_size: int, max_overflow: int) -> Engine:
    options = {
        "statement_timeout": int(settings.statement_timeout_s * 1000),
        # A process frozen inside a transaction must not hold a row, nor anybody wait for one, for long.
        "idle_in_transaction_session_timeout": _IDLE_MS,
        "lock_timeout": _LOCK_MS,
        "timezone": "UTC",
    }
    return create_engine(
        settings.url.get_secret_value(),
        pool_size=pool_size,
        max_overflow=max_overflow,
        pool_pre_ping=True,
        pool_timeout=10,
        hide_parameters=True,  # statements in error messages must not carry users' data
        connect_args={
            "application_name": application,
            "connect_timeout": 5,
            # A peer that vanished without a word is noticed within seconds (ignored on unix sockets).
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": 10_000,
            "options": " ".join(f"-c {name}={value}" for name, value in options.items()),
        },
    )


def assert_no_transaction() -> None:
    """Fail loudly when the calling thread holds a transaction open: called before every model and sandbox call (design rule 2)."""
    if getattr(_open, "depth", 0):
        raise AssertionError("a transaction is open across a model or sandbox call")
