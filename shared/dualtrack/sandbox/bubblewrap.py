"""The bubblewrap driver: Linux namespaces, a system call filter, control groups or resource limits.

Never runs bubblewrap as root (it would be escapable): as root it drops to an unprivileged user first. Always starts it with an empty
environment, from a process that ends with this one (see `spawner`), and so do all sandboxes with it.
"""

from __future__ import annotations

import os
import platform
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import SandboxFailed, SandboxUnavailable
from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.access import give_workspace
from dualtrack.sandbox.bwrap_sandbox import BwrapSandbox, Setup
from dualtrack.sandbox.bwrap_setup import find_setup, trial
from dualtrack.sandbox.cgroups import CgroupSupport, detect
from dualtrack.sandbox.group_names import remove_leftovers
from dualtrack.sandbox.programs import agent_program, remove_drafts
from dualtrack.sandbox.rung import AgentProgram, LaunchSpec, RungName, RungReport
from dualtrack.sandbox.spawner import spawner_for
from dualtrack.settings import SandboxSettings

_STRENGTH: Final = "unprivileged user, all namespaces, system call filter; shares the kernel with the machine"
_VERSION_S: Final = 20.0
_PROOF: Final = ("python3", "-I", "-S", "-c", "print(6 * 7)")


class BubblewrapRung:
    """`Rung` by bubblewrap. Thread-safe; finds out on first use what this machine allows."""

    name = RungName.BUBBLEWRAP
    shares_files = True

    def __init__(
        self, settings: SandboxSettings, limits: SandboxLimits, agent: AgentProgram | None = None, *, cgroups: bool = True
    ) -> None:
        """Nothing is started yet.

        Args:
            settings: where workspaces are, and the user that sandboxes run as.
            limits: those that trial sandboxes run under.
            agent: what is started inside; None: the agent of this version.
            cgroups: False: make no control groups even where they could be made.
        """
        self._settings = settings
        self._limits = limits
        self._agent = agent
        self._uid = settings.uid if os.geteuid() == 0 else None
        self._spawner = spawner_for(self._uid)
        self._with_cgroups = cgroups
        self._lock = threading.Lock()
        self._setup: Setup | None = None
        self._support: CgroupSupport | None = None

    def launch(self, spec: LaunchSpec) -> BwrapSandbox:
        """See `Rung.launch`. As root, what is in the workspace is given to the sandbox's user first."""
        setup = self._ready()
        if setup.uid is not None:
            give_workspace(spec.workspace, setup.uid)
        agent = self._program()
        return BwrapSandbox(setup, self._spawner, spec, agent.argv, mounts=[agent.mount])

    def probe(self) -> RungReport:
        """See `Rung.probe`."""
        try:
            setup = self._ready()
            started = time.monotonic()
            printed, said = trial(setup, self._spawner, self._settings, self._limits, _PROOF)
            took = time.monotonic() - started
        except (SandboxUnavailable, SandboxFailed) as error:
            return RungReport(self.name, works=False, strength=_STRENGTH, found={}, problem=error.message)
        found = {
            "bubblewrap": f"{_version(setup.binary)} ({setup.binary})",
            "kernel": platform.release(),
            "user": str(os.geteuid() if setup.uid is None else setup.uid),
            "control groups": str(setup.cgroups),
            "python": "the system's" if setup.interpreter is None else str(setup.interpreter),
            "start, Python and end": f"{took * 1000:.0f} ms",
        }
        problem = ""
        if printed.strip() != b"42":
            problem = (
                f"The sandbox works but Python does not run in it ({said}). Install the system's python3 (such as: apt-get install "
                "python3), or raise the limits that sandboxes run under."
            )
        return RungReport(self.name, works=not problem, strength=_STRENGTH, found=found, gaps=_gaps(setup), problem=problem)

    def sweep(self) -> Sequence[str]:
        """See `Rung.sweep`. Processes end with their executor; what a dead one leaves are empty control groups and drafts of copies."""
        removed: list[str] = []
        for parent in self._groups().parents():
            removed += remove_leftovers(parent)
        return [*removed, *remove_drafts(self._settings.workspaces)]

    def _program(self) -> AgentProgram:
        with self._lock:
            if self._agent is None:
                self._agent = agent_program(self._settings.workspaces)
            return self._agent

    def _groups(self) -> CgroupSupport:
        with self._lock:
            if self._support is None:
                self._support = detect() if self._with_cgroups else CgroupSupport()
            return self._support

    def _ready(self) -> Setup:
        cgroups = self._groups()
        with self._lock:
            if self._setup is None:
                self._setup = find_setup(self._settings, self._limits, cgroups, self._spawner, self._uid)
            return self._setup


def _gaps(setup: Setup) -> list[str]:
    missing = {
        "memory limit is per process, by address space: no control group for memory can be made": setup.cgroups.memory is None,
        "process limit by RLIMIT_NPROC, hits are not counted: no control group for processes can be made": setup.cgroups.pids is None,
        "CPU time is limited per process and not counted: no control group for it can be made": setup.cgroups.cpu is None,
        "new user namespaces are forbidden by the system call filter alone (/proc/sys is read-only here)": not setup.variant.disable_userns,
        "/proc is empty inside: programs that need it fail": not setup.variant.proc,
    }
    return [text for text, applies in missing.items() if applies]


def _version(binary: Path) -> str:
    try:
        done = subprocess.run([binary, "--version"], capture_output=True, env={}, timeout=_VERSION_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.decode(errors="replace").strip().removeprefix("bubblewrap ")
