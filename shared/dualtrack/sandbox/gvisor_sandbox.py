"""One gVisor sandbox, from its start to the certainty that nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import SandboxFailed
from dualtrack.domain.limits import MIB
from dualtrack.objects.process_dir import remove_in
from dualtrack.sandbox.cgroups import CgroupSupport
from dualtrack.sandbox.descriptors import pipe
from dualtrack.sandbox.gvisor_bundle import OWN_TASKS, TASKS_EACH, Ids, config, make_mount_points, system_mounts
from dualtrack.sandbox.gvisor_processes import end_processes_below, processes_below
from dualtrack.sandbox.rung import Counters, Enforced, LaunchSpec, Mount
from dualtrack.sandbox.sandbox_group import SandboxGroup
from dualtrack.sandbox.spawned import GONE_S, SpawnedSandbox, send_kill
from dualtrack.sandbox.spawner import Spawner

_NAME: Final = "s"  # in a directory of its own; short, since a socket's path has 107 characters at most
_OWN_BYTES: Final = 48 * MIB
"""What gVisor's kernel and file server need themselves."""
# Its own shell waits until it is in its control groups; the gate's other end closes with this process.
_GATED: Final = ("sandbox", "-c", 'read -r _ <&3 && exec 3<&- && exec "$@"', "sandbox")
_SHELL: Final = Path("/bin/sh")
_SET_PRIVILEGES: Final = Path("/usr/bin/setpriv")


@dataclass(frozen=True, slots=True)
class Setup:
    """What was found on this machine and made for this process; the same for every sandbox."""

    runsc: Path
    platform: str
    ids: Ids
    interpreter: Path | None
    cgroups: CgroupSupport
    root: Path
    """The sandboxes' root."""
    directory: Path
    """Where each sandbox gets a directory of its own."""

    @property
    def dies_with_parent(self) -> bool:
        """Whether sandboxes end at once when this process is killed; else the next one ends them."""
        return _SET_PRIVILEGES.is_file()


class GvisorSandbox(SpawnedSandbox):
    """`rung.Launched` by runsc. Its kernel and file server end with the runsc process that started them."""

    own_processes = True

    def __init__(self, setup: Setup, spawner: Spawner, spec: LaunchSpec, argv: Sequence[str], mounts: Sequence[Mount] = ()) -> None:
        """Start `argv` in a sandbox, in its control groups before anything of it runs.

        Args:
            setup: what this machine allows.
            spawner: what starts it.
            spec: its workspace, limits, mounts and environment.
            argv: the program; `argv[0]` is looked up on the sandbox's PATH.
            mounts: shown as well.

        Raises:
            SandboxFailed: it can't be started. Nothing is left then.
        """
        super().__init__("runsc", setup.cgroups)
        self.enforced = Enforced(memory=setup.cgroups.memory is not None, processes=True)
        self._setup = setup
        self._directory = setup.directory / secrets.token_hex(4)
        shown = [*system_mounts(setup.interpreter), *mounts, *spec.mounts]
        self._started_by(lambda: self._start(spawner, replace(spec, mounts=shown), argv))

    def _write_bundle(self, spec: LaunchSpec, argv: Sequence[str]) -> None:
        setup = self._setup
        make_mount_points(setup.root, spec.mounts)
        self._directory.mkdir(mode=0o700)
        (self._directory / "config.json").write_bytes(config(setup.root, setup.ids, setup.interpreter, spec, argv))

    def _start(self, spawner: Spawner, spec: LaunchSpec, argv: Sequence[str]) -> None:
        tasks = OWN_TASKS + TASKS_EACH * spec.limits.processes
        self._group = SandboxGroup(self._setup.cgroups, spec.limits.memory_bytes + _OWN_BYTES, tasks)
        self._write_bundle(spec, argv)
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as given:
            streams = self._pipes(given)
            gate, release = pipe(given, ours)
            process = spawner.spawn(_SHELL, [*_GATED, *self._command(spec)], [*streams, gate])
            self._take(process)
            self._group.add(process.pid)
            os.write(release, b"\n")

    def _command(self, spec: LaunchSpec) -> list[str]:
        setup = self._setup
        rootless = setup.ids.outside is None
        return [
            *([str(_SET_PRIVILEGES), "--pdeathsig", "KILL"] if setup.dies_with_parent else []),
            str(setup.runsc),
            f"--root={self._directory}/state",
            f"--platform={setup.platform}",
            "--network=none",
            "--ignore-cgroups",  # they are made here, the same way for every rung
            "--overlay2=none",  # files are to reach the workspace, not gVisor's memory
            "--file-access-mounts=shared",  # the host moves files in and out while it runs
            "--oci-seccomp",
            # Opening a file to truncate it empties it on a read-only mount, too, where gVisor's kernel has files open itself (seen in
            # 20240729). It must not have any that are its user's and not to be changed.
            f"--directfs={str(spec.writable and not rootless).lower()}",
            *(["--host-uds=open"] if spec.relay_port is not None else []),
            *(["--rootless"] if rootless else []),
            "run",
            f"--bundle={self._directory}",
            _NAME,
        ]

    def counters(self) -> Counters:
        """See `Launched.counters`. Memory includes what gVisor itself needs (some 20 MiB)."""
        return replace(super().counters(), forks_refused=None)  # of the machine's tasks, which are not the sandbox's processes

    def _kill(self) -> None:
        if self._process is not None:
            send_kill(self._process.pidfd)

    def _await_gone(self, deadline: float) -> None:
        if self._process is None:
            return
        self._await_end(self._process.pidfd, deadline, "runsc was")
        if self._group is not None and self._group.holds:
            self._group.kill()
        else:
            end_processes_below(self._directory, self._setup.runsc, GONE_S)
            if processes_below(self._directory, self._setup.runsc):
                raise SandboxFailed(f"Processes of gVisor were still there {GONE_S:g} s after they were killed.")

    def _clean_up(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            remove_in(self._directory.parent, self._directory.name)
