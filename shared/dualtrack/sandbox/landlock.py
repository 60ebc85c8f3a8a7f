"""The landlock driver, for containers in which no namespaces can be made: Landlock, a system call filter, resource limits.

The weakest rung: nothing is hidden, it is only refused. The workspace has its host path inside, /tmp is `TMPDIR`, and there are no sockets.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Sequence
from typing import Final

from dualtrack.domain.errors import DualtrackError, SandboxUnavailable
from dualtrack.domain.limits import SandboxLimits
from dualtrack.objects.process_dir import ProcessDirectory
from dualtrack.sandbox.access import give_workspace, may_traverse
from dualtrack.sandbox.bundle import TARGET, agent_argv
from dualtrack.sandbox.cgroups import CgroupSupport, detect
from dualtrack.sandbox.group_names import remove_leftovers
from dualtrack.sandbox.inside import landlock
from dualtrack.sandbox.interpreter import interpreter_prefix, system_python
from dualtrack.sandbox.landlock_sandbox import LandlockSandbox, LandlockSetup
from dualtrack.sandbox.port import Command
from dualtrack.sandbox.programs import kept_agent, remove_drafts
from dualtrack.sandbox.rung import AgentProgram, LaunchSpec, Mount, RungName, RungReport
from dualtrack.sandbox.rung_directory import rung_directory
from dualtrack.sandbox.seccomp import filter_program
from dualtrack.sandbox.session import AgentSession
from dualtrack.sandbox.spawner import spawner_for
from dualtrack.settings import SandboxSettings

_STRENGTH: Final = "Landlock, system call filter, resource limits; no namespaces: shares kernel, user and process numbers with the machine"
_READY_S: Final = 60.0
_PROOF: Final = Command(("python3", "-I", "-S", "-c", "print(6 * 7)"))
_REFER_ABI: Final = 2
_TRUNCATE_ABI: Final = 3


class LandlockRung:
    """`Rung` by Landlock. Thread-safe; finds out on first use what this machine allows."""

    name = RungName.LANDLOCK
    shares_files = True

    def __init__(
        self,
        settings: SandboxSettings,
        limits: SandboxLimits,
        agent: AgentProgram | None = None,
        *,
        cgroups: bool = True,
        newest_abi: int | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            settings: where workspaces are, and the user that sandboxes run as.
            limits: those that trial sandboxes run under.
            agent: what is started inside; None: the agent of this version.
            cgroups: False: make no control groups even where they could be made.
            newest_abi: use no newer version of Landlock than this, to see what an older kernel would do.
        """
        self._settings = settings
        self._limits = limits
        self._agent = agent
        self._uid = settings.uid if os.geteuid() == 0 else None
        self._spawner = spawner_for(self._uid)
        self._with_cgroups = cgroups
        self._newest_abi = newest_abi
        self._lock = threading.Lock()
        self._setup: LandlockSetup | None = None
        self._support: CgroupSupport | None = None

    def launch(self, spec: LaunchSpec) -> LandlockSandbox:
        """See `Rung.launch`. As root, what is in the workspace is given to the sandbox's user first.

        Raises:
            SandboxUnavailable: also where a way out is wanted: there is no network of its own that a proxy could be the only way out of.
        """
        if spec.relay_port is not None:
            raise SandboxUnavailable(
                "The landlock sandbox has no network of its own, so that none can be permitted: use bubblewrap or a stronger driver "
                "(DUALTRACK_SANDBOX__DRIVER) for agents that may reach hosts."
            )
        setup = self._ready()
        if setup.uid is not None:
            give_workspace(spec.workspace, setup.uid)
        agent = self._agent or AgentProgram(Mount(setup.supervisor, TARGET), agent_argv())
        return LandlockSandbox(setup, self._spawner, spec, agent)

    def probe(self) -> RungReport:
        """See `Rung.probe`."""
        try:
            setup = self._ready()
            started = time.monotonic()
            problem = self._try()
            took = time.monotonic() - started
        except DualtrackError as error:
            return RungReport(self.name, works=False, strength=_STRENGTH, found={}, problem=error.message)
        found = {
            "Landlock": f"ABI {setup.abi}",
            "kernel": platform.release(),
            "user": str(os.geteuid() if setup.uid is None else setup.uid),
            "control groups": str(setup.cgroups),
            "python": str(setup.python),
            "start, Python and end": f"{took * 1000:.0f} ms",
        }
        return RungReport(self.name, works=not problem, strength=_STRENGTH, found=found, gaps=_gaps(setup), problem=problem)

    def _try(self) -> str:
        """Run Python in a sandbox; what is wrong with it."""
        with ProcessDirectory(self._settings.workspaces) as own:
            workspace = own.path / "trial"
            workspace.mkdir(mode=0o700)
            spec = LaunchSpec(workspace, self._limits)
            session = AgentSession(self.launch(spec), spec, "trial")
            try:
                session.wait_ready(_READY_S)
                outcome = session.run(_PROOF, self._limits, threading.Event())
            finally:
                session.close()
        if outcome.stdout.strip() == b"42":
            return ""
        said = outcome.stderr.decode(errors="replace").strip()
        return f"The sandbox works but Python does not run in it ({outcome.note or f'exit status {outcome.exit_code}'}: {said})."

    def sweep(self) -> Sequence[str]:
        """See `Rung.sweep`. Processes end with their executor; what a dead one leaves are control groups, directories, drafts of copies."""
        removed: list[str] = []
        for parent in self._groups().parents():
            removed += remove_leftovers(parent)
        swept = rung_directory(self._settings.workspaces).sweep()
        return [*removed, *(f"directory {name}" for name in swept), *remove_drafts(self._settings.workspaces)]

    def _groups(self) -> CgroupSupport:
        with self._lock:
            if self._support is None:
                self._support = detect() if self._with_cgroups else CgroupSupport()
            return self._support

    def _ready(self) -> LandlockSetup:
        cgroups = self._groups()
        with self._lock:
            if self._setup is None:
                self._setup = self._find_setup(cgroups)
            return self._setup

    def _find_setup(self, cgroups: CgroupSupport) -> LandlockSetup:
        abi = landlock.supported_abi()
        if abi < 1:
            raise SandboxUnavailable(
                "The kernel has no Landlock, or it is switched off: it needs Linux 5.13 or newer with landlock among the security modules "
                "(kernel parameter lsm=landlock,...), and a container's seccomp profile that allows its three system calls."
            )
        workspaces = self._settings.workspaces.absolute()
        prefix = interpreter_prefix(self._uid)
        setup = LandlockSetup(
            abi=abi if self._newest_abi is None else min(abi, self._newest_abi),
            uid=self._uid,
            python=prefix / "bin/python3" if prefix is not None else system_python(),
            prefix=prefix,
            seccomp=filter_program(namespaces=False),
            cgroups=cgroups,
            supervisor=kept_agent(workspaces),
            scratch=rung_directory(workspaces).path,
        )
        if self._uid is not None and not may_traverse(setup.scratch, self._uid):
            raise SandboxUnavailable(
                f"User {self._uid} can't reach {workspaces}: set DUALTRACK_SANDBOX__WORKSPACES to a directory whose parents it may enter, "
                "such as /var/tmp/dualtrack-workspaces."
            )
        return setup


def _gaps(setup: LandlockSetup) -> list[str]:
    """What it does not give, the worst first."""
    older = {
        "signals reach all processes of the sandbox's user: other sandboxes' and, unless that is root, the executor's: needs Linux 6.12": (
            setup.abi < landlock.SCOPES_ABI
        ),
        "files elsewhere that the sandbox's user may write to can be truncated: needs Linux 6.2": setup.abi < _TRUNCATE_ABI,
        "files can't be moved from one directory to another: needs Linux 5.19": setup.abi < _REFER_ABI,
    }
    always = [
        "no sockets but pairs (no loopback, no unix sockets), so no network by permission either",
        "names, sizes and times of the machine's files, and that a process number is in use, can be found out by asking for each",
        "mode and times of files that belong to the sandbox's user can be changed, where their path is known: it should own nothing else",
        "no /proc, /dev/shm, /tmp or /etc/passwd inside: ps and multiprocessing's locks and queues fail; TMPDIR is on disk",
        "the kernel's quotas of a user (pipe buffers, inotify watches) are shared by all sandboxes",
    ]
    limits = {
        "memory limit is per process, by address space: no control group for memory can be made": setup.cgroups.memory is None,
        "process limit counts those of all sandboxes: no control group for processes can be made": setup.cgroups.pids is None,
        "CPU time is limited per process and not counted: no control group for it can be made": setup.cgroups.cpu is None,
    }
    return [*(text for text, applies in older.items() if applies), *always, *(text for text, applies in limits.items() if applies)]
