"""One sandbox without namespaces, from its start to the certainty that nothing of it is left."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import SandboxFailed
from dualtrack.objects.process_dir import remove_in
from dualtrack.sandbox.cgroups import CgroupSupport
from dualtrack.sandbox.descriptors import pipe, write_all
from dualtrack.sandbox.inside import landlock
from dualtrack.sandbox.rung import AgentProgram, Enforced, LaunchSpec, Mount
from dualtrack.sandbox.sandbox_group import SandboxGroup
from dualtrack.sandbox.spawned import SpawnedSandbox
from dualtrack.sandbox.spawner import Spawner
from dualtrack.sandbox.system_view import ETC, SYSTEM_DIRECTORIES, environment

_OWN_PROCESSES: Final = 3  # the supervisor, the agent and its waiting interpreter
_DEVICES: Final = ("null", "zero", "full", "random", "urandom")
_SUPERVISOR: Final = "import sys; sys.path.insert(0, {directory!r}); from dualtrack_inside.supervisor import main; sys.exit(main())"


@dataclass(frozen=True, slots=True)
class LandlockSetup:
    """What was found on this machine; the same for every sandbox."""

    abi: int
    uid: int | None
    """User to drop to; None when this process is unprivileged already."""
    python: Path
    prefix: Path | None
    """Its installation, where that is outside /usr."""
    seccomp: bytes
    cgroups: CgroupSupport
    supervisor: Path
    """Directory of the agent's package, which the supervisor is a part of."""
    scratch: Path
    """Where private temporary directories are made."""


class LandlockSandbox(SpawnedSandbox):
    """`rung.Launched` by Landlock. Its supervisor ends with all that came from the agent."""

    def __init__(self, setup: LandlockSetup, spawner: Spawner, spec: LaunchSpec, agent: AgentProgram) -> None:
        """Start the agent in a sandbox, in its control groups before it does anything.

        Raises:
            SandboxFailed: it can't be started. Nothing is left then.
        """
        super().__init__("The sandbox's supervisor", setup.cgroups)
        # A limit on the processes of a user counts those of all sandboxes, so the agent can't know it: it is set here.
        self.enforced = Enforced(memory=setup.cgroups.memory is not None, processes=True)
        self.own_processes = setup.abi >= landlock.SCOPES_ABI
        self.inside = str(spec.workspace)
        self._started_by(lambda: self._start(setup, spawner, spec, agent))

    def _start(self, setup: LandlockSetup, spawner: Spawner, spec: LaunchSpec, agent: AgentProgram) -> None:
        self.scratch = _private_directory(setup)
        processes = spec.limits.processes + _OWN_PROCESSES
        self._group = SandboxGroup(setup.cgroups, spec.limits.memory_bytes, processes, with_kill=True)
        configuration = _configuration(setup, spec, agent, self.scratch, processes)
        with contextlib.ExitStack() as release:
            with contextlib.ExitStack() as given:
                streams = self._pipes(given)
                wanted_end, wanted = pipe(given, release)
                line = [str(setup.python), "-I", "-S", "-B", "-c", _SUPERVISOR.format(directory=str(setup.supervisor))]
                process = spawner.spawn(setup.python, line, [*streams, wanted_end])
                self._take(process)
            # It does nothing before it has read what is wanted: by then it is in its control groups.
            self._group.add(process.pid)
            write_all(wanted, json.dumps(configuration).encode())

    def _kill(self) -> None:
        if self._group is not None and self._group.holds:
            self._group.kill()
        elif self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process.pidfd, signal.SIGTERM)

    def _await_gone(self, deadline: float) -> None:
        if self._process is not None:
            self._await_end(self._process.pidfd, deadline, "Processes of the sandbox were")
        if self._group is not None and not self._group.await_empty(deadline - time.monotonic()):
            raise SandboxFailed("Processes of the sandbox were still in its control group after they were killed.")

    def _clean_up(self) -> None:
        if self.scratch is not None:
            remove_in(self.scratch.parent, self.scratch.name)


def _private_directory(setup: LandlockSetup) -> Path:
    directory = Path(tempfile.mkdtemp(dir=setup.scratch))
    if setup.uid is not None:
        os.chown(directory, setup.uid, setup.uid)
    return directory


def _configuration(setup: LandlockSetup, spec: LaunchSpec, agent: AgentProgram, tmp: Path, processes: int) -> Mapping[str, object]:
    mounts = [agent.mount, *spec.mounts]
    limits = {}
    if setup.cgroups.pids is None:
        uid = os.geteuid() if setup.uid is None else setup.uid
        limits["RLIMIT_NPROC"] = _threads_of(uid) + processes
    return {
        "abi": setup.abi,
        "rights": _rights(setup, spec, tmp, [str(mount.source) for mount in mounts]),
        "filter": base64.b64encode(setup.seccomp).decode(),
        "limits": limits,
        "directory": str(spec.workspace),
        "argv": [str(setup.python), *_outside(agent.argv[1:], mounts)],
        "environment": _environment(setup, spec, tmp),
    }


def _rights(setup: LandlockSetup, spec: LaunchSpec, tmp: Path, shown: Sequence[str]) -> list[tuple[str, int]]:
    read = ["/usr", *(f"/{name}" for name in SYSTEM_DIRECTORIES), *(f"/etc/{name}" for name in ETC), *shown]
    if setup.prefix is not None:
        read.append(str(setup.prefix))
    return [
        *((path, landlock.READ) for path in read),
        *((f"/dev/{name}", landlock.DEVICE) for name in _DEVICES),
        (str(spec.workspace), landlock.WRITE if spec.writable else landlock.READ),
        (str(tmp), landlock.WRITE),
    ]


def _environment(setup: LandlockSetup, spec: LaunchSpec, tmp: Path) -> dict[str, str]:
    """As on other rungs, with the paths that things have here."""
    names = list(spec.environment)
    further = dict(zip(names, _outside([spec.environment[name] for name in names], spec.mounts), strict=True))
    return environment(setup.prefix, {"HOME": str(spec.workspace), "TMPDIR": str(tmp), **further})


def _outside(texts: Sequence[str], mounts: Sequence[Mount]) -> list[str]:
    """Texts with the host's own paths instead of those that mounts would have."""
    result = list(texts)
    for mount in mounts:
        result = [text.replace(mount.target, str(mount.source)) for text in result]
    return result


def _threads_of(uid: int) -> int:
    """Threads of all processes of a user, as the kernel counts them for its limit."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == uid:
                count += len(list((process / "task").iterdir()))
    return count
