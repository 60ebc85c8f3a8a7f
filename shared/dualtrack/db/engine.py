"""The connection pool and the unit of work: the only place that commits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from dualtrack.domain.errors import DatabaseUnavailable
from dualtrack.settings import DatabaseSettings

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
        """Run what was registered; for `Database` only."""
        for action in self._after:
            action()


class Database:
    """A pool of PostgreSQL connections. Thread-safe."""

    def __init__(self, settings: DatabaseSettings, *, application: str = "dualtrack") -> None:
        self.engine: Final[Engine] = create_engine(
            settings.url.get_secret_value(),
            pool_size=settings.pool_size,
            max_overflow=settings.pool_overflow,
            pool_pre_ping=True,
            pool_timeout=10,
            hide_parameters=True,  # statements in error messages must not carry users' data
            connect_args={
                "application_name": application,
                "connect_timeout": 5,
                "options": f"-c statement_timeout={int(settings.statement_timeout_s * 1000)} -c timezone=UTC",
            },
        )

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A transaction: committed at the end of the block, rolled back when it raises, then the after-commit actions.

        Raises:
            DatabaseUnavailable: the server can't be reached or broke the connection; nothing was committed, except that
                a connection cut during the commit itself leaves it unknown (every caller writes under a fencing token or a natural key).
        """
        try:
            with self.engine.begin() as connection:
                transaction = Transaction(connection)
                _open.depth = getattr(_open, "depth", 0) + 1
                try:
                    yield transaction
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
        transaction.committed()

    def check(self) -> None:
        """Raise `DatabaseUnavailable` unless a statement can be run now."""
        with self.transaction() as tx:
            tx.connection.execute(text("SELECT 1"))

    def close(self) -> None:
        """Give all pooled connections back."""
        self.engine.dispose()


def assert_no_transaction() -> None:
    """Fail loudly when the calling thread holds a transaction open: called before every model and sandbox call (design rule 2)."""
    if getattr(_open, "depth", 0):
        raise AssertionError("a transaction is open across a model or sandbox call")
