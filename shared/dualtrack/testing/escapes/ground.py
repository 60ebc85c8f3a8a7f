"""Where attempts are run: behind a rung, or, as the control that shows that they can work, with nothing between them and the machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from dualtrack.domain.errors import DualtrackError, SandboxFailed
from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.factory import open_rung
from dualtrack.sandbox.interpreter import interpreter_prefix
from dualtrack.sandbox.one_shot import OneShot
from dualtrack.sandbox.port import Command, Ended, Outcome, Sandbox
from dualtrack.sandbox.rung import Rung, RungName
from dualtrack.settings import SandboxSettings
from dualtrack.testing.escapes.remains import processes_of_run
from dualtrack.testing.rung_sessions import RungSessions

_PATIENCE_S: Final = 60.0
_HELD_S: Final = 21.0
_KEPT: Final = 8 * 1024 * 1024


class Ground(Protocol):
    """Runs Python source in a fresh sandbox."""

    name: str

    def run(self, source: str, stdin: bytes, workspace: Path, limits: SandboxLimits) -> Outcome:
        """Run it to its end or a limit. Raises `SandboxFailed` where that was not possible."""
        ...


class OneShotGround:
    """A sandbox that runs single commands."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.name = sandbox.name
        self._sandbox = sandbox

    def run(self, source: str, stdin: bytes, workspace: Path, limits: SandboxLimits) -> Outcome:
        started = time.monotonic()
        try:
            return self._sandbox.run(Command(("python3", "-I", "-c", source), stdin=stdin), workspace, limits, threading.Event())
        except SandboxFailed as error:  # an attempt has ended the agent, and the sandbox with it: no result is taken from it
            return Outcome(Ended.SIGNALLED, None, signal.SIGKILL, b"", b"", 0, 0, time.monotonic() - started, error.message)


class RungGround:
    """A rung, with a session for each run: a command of the agent inside, as in production."""

    def __init__(self, rung: Rung) -> None:
        self.name = rung.name.value
        self._rung = rung

    def run(self, source: str, stdin: bytes, workspace: Path, limits: SandboxLimits) -> Outcome:
        root = Path(tempfile.mkdtemp(prefix="dualtrack-escapes-sessions-", dir=workspace.parent))
        root.chmod(0o711)
        sessions = RungSessions(self._rung, root)
        try:
            return OneShotGround(OneShot(sessions, limits, name=self.name)).run(source, stdin, workspace, limits)
        finally:
            sessions.close()
            root.rmdir()


class Unsandboxed:
    """The control: a careless launcher, which gives a program its environment, its open files and its network, and no limits.

    `uid` 0 runs it as root in mount and host name namespaces of its own, so that attempts that work there do no harm.
    """

    def __init__(self, uid: int) -> None:
        self.name = "as root" if uid == 0 else "as a plain user"
        self._uid = uid
        self._python = _python(uid)

    def run(self, source: str, stdin: bytes, workspace: Path, limits: SandboxLimits) -> Outcome:
        token = f"ESCAPE_RUN={secrets.token_hex(12)}"
        name, _, value = token.partition("=")
        started = time.monotonic()
        drop: dict[str, Any] = {} if os.geteuid() or not self._uid else {"user": self._uid, "group": self._uid, "extra_groups": []}
        before = ["unshare", "--mount", "--propagation", "private", "--uts"] if self._uid == 0 else []
        process = subprocess.Popen(
            [*before, self._python, "-I", "-c", source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, name: value},
            cwd=workspace,
            close_fds=False,
            start_new_session=True,
            **drop,
        )
        output, dropped = bytearray(), 0
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(_PATIENCE_S, _end_all, (token,))
        timer.start()
        with process:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(stdin)
                process.stdin.close()
            reader = threading.Thread(target=_read, args=(process.stdout, output), daemon=True)
            reader.start()
            code = process.wait()
            reader.join(2)
            wall = time.monotonic() - started
            if reader.is_alive():  # a process it has left holds its output: a naive launcher would wait
                reader.join(_HELD_S)
                wall = time.monotonic() - started
                timer.cancel()
                _end_all(token)
                reader.join()
        timer.cancel()
        dropped = max(0, len(output) - _KEPT)
        ended, number = (Ended.SIGNALLED, -code) if code < 0 else (Ended.EXITED, None)
        return Outcome(ended, code if code >= 0 else None, number, bytes(output[:_KEPT]), b"", dropped, 0, wall)


def _read(stream: Any, output: bytearray) -> None:
    while data := stream.read(1 << 16):
        output += data


def _end_all(token: str) -> None:
    for pid in processes_of_run(token):
        if pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _python(uid: int) -> str:
    """A Python that this user may run."""
    for path in ("/usr/local/bin/python3", "/usr/bin/python3"):
        if os.access(path, os.X_OK):
            return path
    prefix = interpreter_prefix(uid or None)
    return str(prefix / "bin" / "python3") if prefix else shutil.which("python3") or sys.executable


def sandbox_user(settings: SandboxSettings | None = None) -> int:
    """The user that sandboxes run as when this process starts them."""
    return (settings or SandboxSettings()).uid if os.geteuid() == 0 else os.getuid()


def open_rungs(settings: SandboxSettings, names: Sequence[str] | None) -> tuple[dict[str, Ground], dict[str, str]]:
    """The rungs that work on this machine (of those named, or of all), and why the others do not."""
    works: dict[str, Ground] = {}
    absent: dict[str, str] = {}
    for name in names or RungName:
        try:
            rung = open_rung(RungName(name), settings, SandboxLimits())
        except ValueError:
            absent[name] = f"there is no such rung; there are {', '.join(RungName)}"
        except DualtrackError as error:
            absent[name] = error.message
        else:
            report = rung.probe()
            if report.works:
                works[name] = RungGround(rung)
            else:
                absent[name] = report.problem
    return works, absent
