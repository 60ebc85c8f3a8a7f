"""One bubblewrap sandbox, from its start to the certainty that nothing of it is left."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import SandboxFailed
from dualtrack.sandbox.bwrap_options import Descriptors, Variant, options
from dualtrack.sandbox.cgroups import CgroupSupport
from dualtrack.sandbox.rung import Counters, Enforced, LaunchSpec, Mount
from dualtrack.sandbox.sandbox_group import SandboxGroup
from dualtrack.sandbox.spawner import Spawned, Spawner
from dualtrack.sandbox.system_view import GROUP, PASSWD

_NAME: Final = "sandbox"
_START_S: Final = 20.0  # from exec to a built sandbox: milliseconds, unless the machine is overloaded
_GONE_S: Final = 10.0
_STATUS_BYTES: Final = 4096
_SAID_BYTES: Final = 2000
_ARGUMENTS: Final = 3  # after stdin, stdout and stderr
_DESCRIPTORS: Final = Descriptors(passwd=4, group=5, seccomp=6, status=7)
_OWN_PROCESSES: Final = 3  # bubblewrap, the sandbox's init, and the agent


@dataclass(frozen=True, slots=True)
class Setup:
    """What was found on this machine; the same for every sandbox."""

    binary: Path
    uid: int | None
    """User to drop to; None when this process is unprivileged already."""
    interpreter: Path | None
    seccomp: bytes
    cgroups: CgroupSupport
    variant: Variant


class BwrapSandbox:
    """`rung.Launched` by bubblewrap."""

    own_processes = True

    def __init__(self, setup: Setup, spawner: Spawner, spec: LaunchSpec, argv: Sequence[str], mounts: Sequence[Mount] = ()) -> None:
        """Start `argv` in a sandbox, in its control groups before anything runs inside.

        Args:
            setup: what this machine allows.
            spawner: what starts it; it ends with the spawner.
            spec: its workspace, limits, mounts and environment.
            argv: the program; `argv[0]` is looked up on the sandbox's PATH.
            mounts: shown as well.

        Raises:
            SandboxFailed: bubblewrap can't be started, ended, or did not get ready in time. Nothing is left then.
        """
        self.enforced = Enforced(memory=setup.cgroups.memory is not None, processes=setup.cgroups.pids is not None)
        self._lock = threading.Lock()  # around the descriptors of processes, against their reuse
        self._monitor: Spawned | None = None
        self._init = -1
        self._errors = -1
        self._said = b""
        self._closed = False
        self._kept = contextlib.ExitStack()
        """Descriptors."""
        self._group: SandboxGroup | None = None
        try:
            self._group = SandboxGroup(setup.cgroups, spec.limits.memory_bytes, spec.limits.processes + _OWN_PROCESSES)
            self._start(setup, spawner, replace(spec, mounts=[*mounts, *spec.mounts]), argv)
        except BaseException as error:
            self.close()
            if isinstance(error, ProcessLookupError | BrokenPipeError):  # it was gone before it could be taken hold of
                raise SandboxFailed(f"bubblewrap ended: {self.said() or 'no message'}") from error
            if isinstance(error, OSError):
                raise SandboxFailed(f"The sandbox could not be started: {error}.") from error
            raise

    def _start(self, setup: Setup, spawner: Spawner, spec: LaunchSpec, argv: Sequence[str]) -> None:
        listed = options(setup.variant, setup.interpreter, spec, _DESCRIPTORS)
        with contextlib.ExitStack() as ours:  # needed until it runs
            with contextlib.ExitStack() as release:
                with contextlib.ExitStack() as given:  # what bubblewrap gets; it has copies once it is started
                    stdin, self.input = _pipe(given, self._kept)
                    self.output, stdout = _pipe(self._kept, given)
                    self._errors, stderr = _pipe(self._kept, given)
                    status, status_end = _pipe(ours, given)
                    arguments_end, arguments = _pipe(given, release)
                    os.set_blocking(self._errors, False)
                    passwd, group, seccomp = _file(given, PASSWD), _file(given, GROUP), _file(given, setup.seccomp)
                    # The sandbox's init keeps this command line, for all in it to read: it names nothing of the host.
                    line = [_NAME, "--args", str(_ARGUMENTS), "--", *argv]
                    numbered = [stdin, stdout, stderr, arguments_end, passwd, group, seccomp, status_end]
                    self._monitor = spawner.spawn(setup.binary, line, numbered)
                    self._kept.callback(os.close, self._monitor.pidfd)
                # Before it has read its options to their end it does nothing: by then it is in its control groups, and so is all it starts.
                try:
                    if self._group is not None:
                        self._group.add(self._monitor.pid)
                    _write(arguments, b"".join(os.fsencode(option) + b"\0" for option in listed))
                except BaseException:
                    self.kill()  # before it takes what it has for all of its options
                    raise
            self._init = os.pidfd_open(self._await_init(status))
            self._kept.callback(os.close, self._init)

    def _await_init(self, status: int) -> int:
        """Process number of the sandbox's init, as bubblewrap reports it."""
        deadline = time.monotonic() + _START_S
        report = b""
        while b"\n" not in report:
            ready = _readable([status], deadline - time.monotonic())
            data = os.read(status, _STATUS_BYTES) if ready else b""
            if not data:
                self.kill()
                happened = "ended" if ready else f"was not ready after {_START_S:g} s"
                raise SandboxFailed(f"bubblewrap {happened}: {self.said() or 'no message'}")
            report += data
        return int(json.loads(report.splitlines()[0])["child-pid"])

    def counters(self) -> Counters:
        """See `Launched.counters`."""
        return self._group.counters() if self._group is not None else Counters()

    def said(self) -> str:
        """The end of what bubblewrap has printed so far."""
        with self._lock:
            if not self._closed and self._errors >= 0:
                self._read_errors()
        return self._said.decode(errors="replace").strip()

    def _read_errors(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._errors, _SAID_BYTES):
                self._said = (self._said + data)[-_SAID_BYTES:]

    def wait_ended(self, patience_s: float) -> bool:
        """Whether it has ended by then."""
        return self._monitor is None or bool(_readable([self._monitor.pidfd], patience_s))

    def kill(self) -> None:
        """See `Launched.kill`. The end of its init is that of every process in its namespace."""
        with self._lock:
            if not self._closed:
                self._kill()

    def _kill(self) -> None:
        for descriptor in (self._init, self._monitor.pidfd if self._monitor is not None else -1):
            if descriptor >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)

    def close(self) -> None:
        """See `Launched.close`."""
        with self._lock:
            if self._closed:
                return
            self._kill()
            try:
                self._await_gone()
            finally:
                if self._errors >= 0:
                    self._read_errors()
                self._closed = True
                self._kept.close()
                if self._group is not None:
                    self._group.close()

    def _await_gone(self) -> None:
        deadline = time.monotonic() + _GONE_S
        for descriptor, what in (
            (self._init, "Processes in the sandbox were"),
            (self._monitor.pidfd if self._monitor is not None else -1, "bubblewrap was"),
        ):
            if descriptor >= 0 and not _readable([descriptor], max(0.0, deadline - time.monotonic())):
                raise SandboxFailed(f"{what} still there {_GONE_S:g} s after they were killed.")


def _readable(descriptors: list[int], patience_s: float) -> list[int]:
    waiting = select.poll()
    for descriptor in descriptors:
        waiting.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in waiting.poll(max(0.0, patience_s) * 1000)]


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    """The reading and the writing end of a pipe, each closed with its own stack."""
    ends = os.pipe()
    reader.callback(os.close, ends[0])
    writer.callback(os.close, ends[1])
    return ends


def _file(given: contextlib.ExitStack, content: bytes) -> int:
    """An anonymous file at its beginning."""
    descriptor = os.memfd_create("dualtrack", os.MFD_CLOEXEC)
    given.callback(os.close, descriptor)
    _write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
