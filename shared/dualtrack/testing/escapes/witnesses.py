"""Processes of the host, of the same user as the sandbox's, that nobody inside may see, stop or read."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
from pathlib import Path
from typing import Any, Self


class Witnesses:
    """One sleeping process for each attempt that asks; use as a context manager, which ends them.

    Attributes:
        marker: is in their command lines.
        secret: is in their environment, and so in their memory.
        niceness: of each; a special one where this process may give it.
    """

    def __init__(self, uid: int) -> None:
        self._uid = uid
        self.marker = f"witness-{secrets.token_hex(8)}"
        self.secret = f"secret-{secrets.token_hex(12)}"
        self.niceness = os.getpriority(os.PRIO_PROCESS, 0) - (3 if os.geteuid() == 0 else 0)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._processes):
            self._end(name)

    def _end(self, name: str) -> None:
        with self._processes.pop(name) as process, contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def start(self, name: str) -> int:
        """The process number of the witness of that attempt. It ends on SIGWINCH too, which other programs ignore."""
        if name in self._processes:
            self._end(name)
        drop: dict[str, Any] = {} if os.geteuid() else {"user": self._uid, "group": self._uid, "extra_groups": []}
        process = subprocess.Popen(
            ["/bin/sh", "-c", "trap 'exit 1' WINCH; while :; do sleep 0.2; done", self.marker],
            env={"PATH": "/usr/bin:/bin", "SECRET": self.secret},
            stdin=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            **drop,
        )
        self._processes[name] = process
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, process.pid, self.niceness)
        return process.pid

    def harmed(self, name: str) -> str:
        """What was done to it: `killed by SIGTERM`, `stopped`, `niceness 19`; empty: nothing."""
        process = self._processes.get(name)
        if process is None:
            return ""
        status = process.poll()
        if status is not None:
            return f"its process {process.pid} was ended ({status})"
        with contextlib.suppress(OSError):
            fields = _fields(process.pid)
            if fields[0] in "Tt":
                return f"its process {process.pid} was stopped"
            if int(fields[16]) != self.niceness:
                return f"the niceness of its process {process.pid} was changed"
        return ""


def _fields(pid: int) -> list[str]:
    """Of /proc/PID/stat, from the state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
