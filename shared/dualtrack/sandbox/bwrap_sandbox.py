"""One bubblewrap sandbox, from its start to the certainty that nothing of it is left."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import SandboxFailed
from dualtrack.sandbox.bwrap_options import Descriptors, Variant, options
from dualtrack.sandbox.cgroups import CgroupSupport
from dualtrack.sandbox.descriptors import anonymous_file, pipe, readable, write_all
from dualtrack.sandbox.rung import LaunchSpec, Mount
from dualtrack.sandbox.sandbox_group import SandboxGroup
from dualtrack.sandbox.spawned import SpawnedSandbox, send_kill
from dualtrack.sandbox.spawner import Spawner
from dualtrack.sandbox.system_view import GROUP, PASSWD

_NAME: Final = "sandbox"
_START_S: Final = 20.0  # from exec to a built sandbox: milliseconds, unless the machine is overloaded
_STATUS_BYTES: Final = 4096
_ARGUMENTS: Final = 3  # after stdin, stdout and stderr
_DESCRIPTORS: Final = Descriptors(passwd=4, group=5, seccomp=6, status=7)
_OWN_PROCESSES: Final = 3  # bubblewrap, the agent as the sandbox's init, and its waiting interpreter


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


class BwrapSandbox(SpawnedSandbox):
    """`rung.Launched` by bubblewrap. The end of its init is that of every process in its namespace."""

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
        super().__init__("bubblewrap", setup.cgroups)
        self._init = -1
        self._started_by(lambda: self._start(setup, spawner, replace(spec, mounts=[*mounts, *spec.mounts]), argv))

    def _start(self, setup: Setup, spawner: Spawner, spec: LaunchSpec, argv: Sequence[str]) -> None:
        self._group = SandboxGroup(setup.cgroups, spec.limits.memory_bytes, spec.limits.processes + _OWN_PROCESSES)
        # Without an init of bubblewrap's: that one keeps the agent's descriptors, and its memory is open to all of its user, so that any
        # command could speak to the host in the agent's name. The agent reaps orphans itself, and nobody may look into it.
        listed = ["--as-pid-1", *options(setup.variant, setup.interpreter, spec, _DESCRIPTORS)]
        with contextlib.ExitStack() as ours:  # needed until it runs
            with contextlib.ExitStack() as release:
                with contextlib.ExitStack() as given:  # what bubblewrap gets; it has copies once it is started
                    streams = self._pipes(given)
                    arguments_end, arguments = pipe(given, release)
                    status, status_end = pipe(ours, given)
                    files = [anonymous_file(given, content) for content in (PASSWD, GROUP, setup.seccomp)]
                    # bubblewrap keeps this command line: it names nothing of the host, for those who share its process list.
                    line = [_NAME, "--args", str(_ARGUMENTS), "--", *argv]
                    process = spawner.spawn(setup.binary, line, [*streams, arguments_end, *files, status_end])
                    self._take(process)
                # Before it has read its options to their end it does nothing: by then it is in its control groups, and so is all it starts.
                try:
                    self._group.add(process.pid)
                    write_all(arguments, b"".join(os.fsencode(option) + b"\0" for option in listed))
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
            ready = readable(status, deadline - time.monotonic())
            data = os.read(status, _STATUS_BYTES) if ready else b""
            if not data:
                self.kill()
                happened = "ended" if ready else f"was not ready after {_START_S:g} s"
                raise SandboxFailed(f"bubblewrap {happened}: {self.said() or 'no message'}")
            report += data
        return int(json.loads(report.splitlines()[0])["child-pid"])

    def _kill(self) -> None:
        send_kill(self._init)
        if self._process is not None:
            send_kill(self._process.pidfd)

    def _await_gone(self, deadline: float) -> None:
        self._await_end(self._init, deadline, "Processes in the sandbox were")
        if self._process is not None:
            self._await_end(self._process.pidfd, deadline, "bubblewrap's processes were")
