"""One server process: its log, its end, and waiting for it to answer."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil  # type: ignore[import-untyped]

LOG_TAIL_BYTES = 4000
_POLL_S = 0.02
_GONE_S = 60.0
_PORTS: Final = range(12_000, 22_000)
"""With room for servers that derive a second port by adding 10000."""
_CHANCE: Final = random.Random()  # of its own: whoever seeds the common one must not get the ports of another run
_given: set[int] = set()
# A test run that is itself killed runs no clean-up, but its end of the pipe closes: the read ends, and the server's group with it.
_WATCHDOG = 'read -r _; kill -9 "-$1"; if [ -n "$2" ]; then sleep 1; rm -rf -- "$2"; fi'


class ServerFailed(RuntimeError):
    """A test server can't be started or did not answer in time; the message says why, with the end of its log."""


def free_ports(count: int) -> list[int]:
    """Distinct TCP ports of 127.0.0.1 that are free now, none of which this process was given before.

    They lie below those that systems give to whoever asks for any (from 32768 on Linux, from 49152 on macOS), so that nobody else is
    given one before its server listens, or while it is restarted.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = _CHANCE.choice(_PORTS)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _given:
            _given.add(port)
            ports.append(port)
    return ports


class ServerProcess:
    """A process in a session of its own, so that everything it starts can be ended with it."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str],
        cwd: Path,
        user: tuple[int, int] | None = None,
        folder: Path | None = None,
    ) -> None:
        """Start it; `user` is the uid and gid to run as (only as root), `folder` goes with it when the test run is killed."""
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
                user=None if user is None else user[0],
                group=None if user is None else user[1],
                extra_groups=None if user is None else [],
            )
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "watchdog", str(self.pid), str(folder or "")],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Its process id, which is also its process group and session."""
        return self._process.pid

    def running(self) -> bool:
        """Whether it has not ended."""
        return self._ended() is None

    def _ended(self) -> int | None:
        """Its exit status, minus the signal's number where one ended it; None while it runs.

        One that has ended is not reaped before `kill` or `stop`: its id, by which its group is killed then, would soon be somebody else's.
        """
        if self._process.returncode is not None or not hasattr(os, "waitid"):  # macOS has no waitid
            return self._process.poll()
        try:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # somebody else has waited for it
            return self._process.poll()
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    def wait_until(self, answers: Callable[[], bool], *, timeout_s: float) -> None:
        """Poll until `answers()`; raises `ServerFailed` when the process ends first or the time is up."""
        deadline = time.monotonic() + timeout_s
        while not answers():
            if not self.running():
                raise ServerFailed(f"{self.name} ended with status {self._ended()} while starting.\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.name} did not answer within {timeout_s:.0f} s.\n{self.log_tail()}")
            time.sleep(_POLL_S)

    def stop(self, ask: signal.Signals = signal.SIGTERM, *, grace_s: float = 20.0) -> None:
        """Ask it to end, kill what is left after `grace_s`; it and all its descendants are gone afterwards."""
        descendants = self._descendants()
        if self.running():
            self._process.send_signal(ask)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        self._kill(descendants)

    def kill(self) -> None:
        """`kill -9` of it, its process group and all its descendants (PostgreSQL's have groups of their own); all are gone afterwards."""
        if self.running():
            os.kill(self.pid, signal.SIGSTOP)  # it starts no further one while they are listed
        self._kill(self._descendants())

    def _descendants(self) -> list[psutil.Process]:
        try:
            found: list[psutil.Process] = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return found

    def _kill(self, descendants: list[psutil.Process]) -> None:
        self._watchdog.kill()  # before the process id is free for somebody else
        self._watchdog.communicate()
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: PermissionError when only a zombie is left
            os.killpg(self.pid, signal.SIGKILL)
        for process in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(_GONE_S)
        deadline = time.monotonic() + _GONE_S
        while any(_alive(process) for process in descendants):
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.name}: processes of it are left after kill -9: {descendants}")
            time.sleep(_POLL_S / 10)

    def log_tail(self) -> str:
        """The end of its log."""
        try:
            data = self.log.read_bytes()
        except OSError:
            return ""
        return data[-LOG_TAIL_BYTES:].decode(errors="replace")


def _alive(process: psutil.Process) -> bool:
    # An orphan's new parent may take its time to reap it: a zombie is as good as gone.
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def accepts_tcp(port: int) -> bool:
    """Whether something listens on that port of 127.0.0.1."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
