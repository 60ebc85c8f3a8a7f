"""The connection pool and the unit of work: the only place that commits."""

from __future__ import annotations

import logging
import select
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast

import psycopg
from psycopg.rows import namedtuple_row
from sqlalchemy import Connection, Engine, NullPool, create_engine, event, text
from sqlalchemy.exc import DBAPIError, DisconnectionError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from dualtrack.db.swift import Runs, SwiftPool
from dualtrack.domain.errors import DatabaseUnavailable
from dualtrack.faults import Fault, point
from dualtrack.settings import DatabaseSettings

_LOG: Final = logging.getLogger(__name__)
_IDLE_MS: Final = 5_000
_LOCK_MS: Final = 10_000
_open: Final = threading.local()


class Transaction:
    """One open transaction and what has to happen once it is committed.

    Attributes:
        broken: once it is closed, whether the connection was lost.
    """

    def __init__(self, engine: Engine) -> None:
        """Takes a connection out of the pool; `Database` gives it back."""
        self._engine = engine
        self._pooled = engine.raw_connection()
        self._sqlalchemy: Connection | None = None
        self._cursor: psycopg.RawCursor[Any] | None = None
        self._after: list[Callable[[], None]] = []
        self.broken = False

    @property
    def connection(self) -> Connection:
        """For statements of every kind. Those of a step are run by the driver itself, see `db.prepared`."""
        if self._sqlalchemy is None:
            self._sqlalchemy = Connection(self._engine, connection=self._pooled)
        return self._sqlalchemy

    def execute(self, sql: bytes, parameters: Sequence[Any]) -> psycopg.Cursor[Any]:
        """Run SQL with parameters `$1` and so on; the cursor, with named rows, is good until the next one."""
        if self._cursor is None:
            self._cursor = psycopg.RawCursor(self._driver, row_factory=namedtuple_row)
        return self._cursor.execute(sql, parameters)

    @property
    def _driver(self) -> psycopg.Connection[Any]:
        driver: psycopg.Connection[Any] = cast("psycopg.Connection[Any]", self._pooled.driver_connection)
        return driver

    def after_commit(self, action: Callable[[], None]) -> None:
        """Do `action` once the commit has succeeded (ring, emit a span); never when it has not."""
        self._after.append(action)

    def commit(self) -> None:
        """For `Database` only."""
        self._driver.commit()

    def close(self) -> None:
        """Give the connection back, for `Database` only; what is not committed is rolled back."""
        driver = cast("psycopg.Connection[Any] | None", self._pooled.driver_connection)  # None once SQLAlchemy found it broken
        self.broken = driver is None or driver.closed or driver.broken
        if driver is not None and self.broken:
            self._pooled.invalidate()
        if self._sqlalchemy is not None:
            self._sqlalchemy.close()
        self._pooled.close()

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
        self._swift = SwiftPool(_engine(settings, f"{application}-swift", swift=True))

    @contextmanager
    def transaction(self, *, vital: bool = False) -> Iterator[Transaction]:
        """A transaction: committed at the end of the block, rolled back when it raises, then the after-commit actions.

        `vital` takes one of the connections kept for heartbeats.

        Raises:
            DatabaseUnavailable: the server can't be reached or broke the connection; nothing was committed, except that
                a connection cut during the commit itself leaves it unknown (every caller writes under a fencing token or a natural key).
        """
        with _translated(lambda: transaction.broken):
            transaction = Transaction(self.vital if vital else self.engine)
            _open.depth = getattr(_open, "depth", 0) + 1
            try:
                yield transaction
                point(Fault.COMMIT)
                transaction.commit()
            finally:
                _open.depth -= 1
                transaction.close()
        point(Fault.COMMITTED)
        transaction.committed()

    @contextmanager
    def statements(self) -> Iterator[Runs]:
        """For statements each of which is a transaction by itself: two ways to the server and back less than one with its commit.

        They are planned once, and to find rows by key.

        Raises:
            DatabaseUnavailable: as `transaction`; what was run before stays.
        """
        with _translated(lambda: connection.broken):
            connection = self._swift.take()
            try:
                point(Fault.COMMIT)
                yield connection
            finally:
                self._swift.give_back(connection)
        point(Fault.COMMITTED)

    def check(self) -> None:
        """Raise `DatabaseUnavailable` unless a statement can be run now."""
        with self.transaction() as tx:
            tx.connection.execute(text("SELECT 1"))

    def close(self) -> None:
        """Give all pooled connections back."""
        self.engine.dispose()
        self.vital.dispose()
        self._swift.close()


@contextmanager
def _translated(lost: Callable[[], bool]) -> Iterator[None]:
    """The driver's and SQLAlchemy's errors as ours; `lost` says, after one, whether the connection is."""
    try:
        yield
    except (OperationalError, psycopg.OperationalError) as error:
        raise DatabaseUnavailable(
            "The database can't be reached or broke the connection; check PostgreSQL and DUALTRACK_DATABASE__URL."
        ) from error
    except PoolTimeout as error:
        raise DatabaseUnavailable("All database connections are busy: try again, or raise DUALTRACK_DATABASE__POOL_OVERFLOW.") from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise DatabaseUnavailable("The database broke the connection.") from error
        raise
    except psycopg.Error as error:  # to the driver, the end of a session that was idle for too long is no operational error
        if lost():
            raise DatabaseUnavailable("The database broke the connection.") from error
        raise


# Such a statement touches a few rows in tables that may be nearly empty when it is planned and large a minute later.
_BY_KEY: Final = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off"}


def _engine(settings: DatabaseSettings, application: str, *, pool_size: int = 0, max_overflow: int = 0, swift: bool = False) -> Engine:
    options: dict[str, str | int] = {
        "statement_timeout": int(settings.statement_timeout_s * 1000),
        # A process frozen inside a transaction must not hold a row, nor anybody wait for one, for long.
        "idle_in_transaction_session_timeout": _IDLE_MS,
        "lock_timeout": _LOCK_MS,
        "timezone": "UTC",
        **(_BY_KEY if swift else {}),
    }
    # Of pooled connections the last one used has its statements prepared; the others may fall idle.
    pooled = {"pool_size": pool_size, "max_overflow": max_overflow, "pool_use_lifo": True, "pool_timeout": 10}
    pool: dict[str, Any] = {"poolclass": NullPool, "isolation_level": "AUTOCOMMIT"} if swift else pooled
    engine = create_engine(
        settings.url.get_secret_value(),
        **pool,
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
    event.listen(engine, "checkout", _refuse_dead)
    return engine


def _refuse_dead(connection: psycopg.Connection[Any], *_: object) -> None:
    """Have the pool replace a connection that the server has ended, without asking the server about those it has not.

    On an idle one it says nothing unasked but that it hangs up; a peer that vanished shows the same way after the keepalives above.
    """
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if poll.poll(0):
        raise DisconnectionError("the server has ended the connection")


def assert_no_transaction() -> None:
    """Fail loudly when the calling thread holds a transaction open: called before every model and sandbox call (design rule 2)."""
    if getattr(_open, "depth", 0):
        raise AssertionError("a transaction is open across a model or sandbox call")
