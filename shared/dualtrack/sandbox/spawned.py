"""What sandboxes have in common that start as a process of the spawner: pipes, control groups, what was printed, the order of the end."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import SandboxFailed
from dualtrack.sandbox.cgroups import CgroupSupport
from dualtrack.sandbox.descriptors import pipe, readable
from dualtrack.sandbox.rung import WORKSPACE, Counters, Enforced
from dualtrack.sandbox.sandbox_group import SandboxGroup
from dualtrack.sandbox.spawner import Spawned

GONE_S: Final = 10.0
"""Longest wait for killed processes to be gone."""
_SAID_BYTES: Final = 2000


class SpawnedSandbox(ABC):
    """`rung.Launched` as far as it does not depend on how the process isolates itself."""

    inside = WORKSPACE
    scratch: Path | None = None

    def __init__(self, what: str, cgroups: CgroupSupport) -> None:
        """`what`: the program's name, for messages."""
        self.enforced = Enforced(memory=cgroups.memory is not None, processes=cgroups.pids is not None)
        self.input = self.output = -1
        self._what = what
        self._lock = threading.Lock()  # around the descriptors of processes, against their reuse
        self._process: Spawned | None = None
        self._errors = -1
        self._said = b""
        self._closed = False
        self._kept = contextlib.ExitStack()
        """Descriptors."""
        self._group: SandboxGroup | None = None

    def _started_by(self, start: Callable[[], None]) -> None:
        """Run `start`; of what it fails to start nothing is left.

        Raises:
            SandboxFailed: whatever failed.
        """
        try:
            start()
        except BaseException as error:
            self.close()
            if isinstance(error, ProcessLookupError | BrokenPipeError):  # it was gone before it could be taken hold of
                raise SandboxFailed(f"{self._what} ended: {self.said() or 'no message'}") from error
            if isinstance(error, OSError):
                raise SandboxFailed(f"The sandbox could not be started: {error}.") from error
            raise

    def _pipes(self, given: contextlib.ExitStack) -> list[int]:
        """What the process gets as stdin, stdout and stderr, closed with `given`."""
        stdin, self.input = pipe(given, self._kept)
        self.output, stdout = pipe(self._kept, given)
        self._errors, stderr = pipe(self._kept, given)
        os.set_blocking(self._errors, False)
        return [stdin, stdout, stderr]

    def _take(self, process: Spawned) -> None:
        self._process = process
        self._kept.callback(os.close, process.pidfd)

    def counters(self) -> Counters:
        """See `Launched.counters`."""
        return self._group.counters() if self._group is not None else Counters()

    def said(self) -> str:
        """The end of what the process has printed so far."""
        with self._lock:
            if not self._closed and self._errors >= 0:
                self._read_errors()
        return self._said.decode(errors="replace").strip()

    def _read_errors(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._errors, _SAID_BYTES):
                self._said = (self._said + data)[-_SAID_BYTES:]

    def wait_ended(self, patience_s: float) -> bool:
        """Whether the process has ended by then."""
        return self._process is None or readable(self._process.pidfd, patience_s)

    def kill(self) -> None:
        """See `Launched.kill`."""
        with self._lock:
            if not self._closed:
                self._kill()

    def close(self) -> None:
        """See `Launched.close`."""
        with self._lock:
            if self._closed:
                return
            self._kill()
            try:
                self._await_gone(time.monotonic() + GONE_S)
            finally:
                if self._errors >= 0:
                    self._read_errors()
                self._closed = True
                self._kept.close()
                if self._group is not None:
                    self._group.close()
                self._clean_up()

    def _await_end(self, pidfd: int, deadline: float, what: str) -> None:
        """Until a process has ended.

        Raises:
            SandboxFailed: it has not.
        """
        if pidfd >= 0 and not readable(pidfd, deadline - time.monotonic()):
            raise SandboxFailed(f"{what} still there {GONE_S:g} s after they were killed.")

    @abstractmethod
    def _kill(self) -> None:
        """Begin the end of all processes."""

    @abstractmethod
    def _await_gone(self, deadline: float) -> None:
        """Until all processes have ended. Raises `SandboxFailed` when they have not by then."""

    def _clean_up(self) -> None:  # noqa: B027 - most have nothing more
        """Remove what else there is."""


def send_kill(pidfd: int) -> None:
    """SIGKILL for a process that may have ended; nothing for -1."""
    if pidfd >= 0:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
