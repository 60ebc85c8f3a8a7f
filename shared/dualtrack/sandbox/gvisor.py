"""The gVisor driver: a kernel of its own in user space for every sandbox, so that commands reach the machine's kernel only through it.

Runs `runsc` on bundles made here; needs no Docker. Started by root, gVisor's own processes are two unprivileged users in a user namespace;
started by an ordinary user, they are that user (`--rootless`).
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import SandboxFailed, SandboxUnavailable
from dualtrack.domain.limits import SandboxLimits
from dualtrack.objects.process_dir import ProcessDirectory
from dualtrack.sandbox.access import give_workspace
from dualtrack.sandbox.cgroups import CgroupSupport, detect
from dualtrack.sandbox.group_names import remove_leftovers
from dualtrack.sandbox.gvisor_bundle import Ids, write_root
from dualtrack.sandbox.gvisor_processes import end_processes_below
from dualtrack.sandbox.gvisor_sandbox import GvisorSandbox, Setup
from dualtrack.sandbox.interpreter import interpreter_prefix
from dualtrack.sandbox.programs import agent_program
from dualtrack.sandbox.rung import AgentProgram, LaunchSpec, RungName, RungReport
from dualtrack.sandbox.rung_directory import rung_directory
from dualtrack.sandbox.spawner import spawner_for
from dualtrack.settings import SandboxSettings

_STRENGTH: Final = "a kernel of its own in user space; the machine's kernel is reached by few, filtered system calls"
_DIRECTORY: Final = ".gvisor"  # beside the workspaces
_PROOF: Final = ("python3", "-I", "-S", "-c", "print(6 * 7)")
_TRIAL_S: Final = 60.0
_VERSION_S: Final = 20.0
_GONE_S: Final = 5.0
_OLDEST: Final = 2024
_SOCKET_CHARS: Final = 107
_SOCKET: Final = "01234567/state/runsc-s.sock"
_INSTALL: Final = "Install it: scripts/install-runsc (Debian 12), or https://gvisor.dev/docs/user_guide/install/"


class GvisorRung:
    """`Rung` by runsc. Thread-safe; finds out on first use what this machine allows."""

    name = RungName.GVISOR
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
        self._spawner = spawner_for(None)
        self._with_cgroups = cgroups
        self._lock = threading.Lock()
        self._setup: Setup | None = None
        self._support: CgroupSupport | None = None

    def launch(self, spec: LaunchSpec) -> GvisorSandbox:
        """See `Rung.launch`. As root, what is in the workspace is given to the sandbox's user first."""
        setup = self._ready()
        if self._uid is not None:
            give_workspace(spec.workspace, self._uid)
        agent = self._program()
        return GvisorSandbox(setup, self._spawner, spec, agent.argv, mounts=[agent.mount])

    def probe(self) -> RungReport:
        """See `Rung.probe`."""
        try:
            setup = self._ready()
            started = time.monotonic()
            printed, said = self._trial(setup)
            took = time.monotonic() - started
        except (SandboxUnavailable, SandboxFailed) as error:
            return RungReport(self.name, works=False, strength=_STRENGTH, found={}, problem=error.message)
        except OSError as error:
            return RungReport(self.name, works=False, strength=_STRENGTH, found={}, problem=f"No workspace can be made: {error}.")
        ids = setup.ids
        found = {
            "runsc": f"{_version(setup.runsc)} ({setup.runsc})",
            "platform": setup.platform,
            "kernel": platform.release(),
            "users": f"{ids.outside} (files), {ids.guard} (gVisor itself)" if ids.outside is not None else f"{os.geteuid()} (rootless)",
            "control groups": str(setup.cgroups),
            "python": "the system's" if setup.interpreter is None else str(setup.interpreter),
            "start, Python and end": f"{took * 1000:.0f} ms",
        }
        problem = ""
        if printed.strip() != b"42":
            problem = f"Python does not run in a gVisor sandbox here: {said}"
        return RungReport(self.name, works=not problem, strength=_STRENGTH, found=found, gaps=_gaps(setup), problem=problem)

    def sweep(self) -> Sequence[str]:
        """See `Rung.sweep`."""
        removed: list[str] = []
        for parent in self._groups().parents():
            removed += remove_leftovers(parent)
        runsc = _find_runsc()
        dead = self._directory().sweep(lambda directory: end_processes_below(directory, runsc, _GONE_S))
        return [*removed, *(f"gVisor sandboxes of process {name}" for name in dead)]

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

    def _directory(self) -> ProcessDirectory:
        found = rung_directory(self._settings.workspaces, _DIRECTORY)
        surplus = len(f"{found.path}/{_SOCKET}") - _SOCKET_CHARS
        if surplus > 0:
            raise SandboxUnavailable(
                f"The path of DUALTRACK_SANDBOX__WORKSPACES is {surplus} characters too long for the sockets of gVisor in it."
            )
        return found

    def _ready(self) -> Setup:
        cgroups = self._groups()
        directory = self._directory().path
        with self._lock:
            if self._setup is None:
                runsc, interpreter = _find_runsc(), interpreter_prefix(self._uid)
                ids = Ids.rootless() if self._uid is None else Ids.for_root(self._uid)
                root = directory / f"root-{secrets.token_hex(4)}"  # a process may have several rungs
                try:
                    write_root(root)
                except OSError as error:
                    raise SandboxUnavailable(f"The root of gVisor's sandboxes can't be made in {directory}: {error}.") from error
                self._setup = Setup(runsc, self._settings.gvisor_platform, ids, interpreter, cgroups, root, directory)
            return self._setup

    def _trial(self, setup: Setup) -> tuple[bytes, str]:
        """What a quick command printed, and what was printed to say why it did not."""
        with ProcessDirectory(self._settings.workspaces) as own:
            workspace = own.path / "trial"
            workspace.mkdir(mode=0o700)
            if self._uid is not None:
                give_workspace(workspace, self._uid)
            sandbox = GvisorSandbox(setup, self._spawner, LaunchSpec(workspace, self._limits), _PROOF)
            try:
                ended = sandbox.wait_ended(_TRIAL_S)
                sandbox.kill()  # then its output ends, whatever it was doing
                printed = os.read(sandbox.output, len(b"42\n"))
            finally:
                sandbox.close()
            return printed, sandbox.said() or ("no message" if ended else f"no end after {_TRIAL_S:g} s")


def _find_runsc() -> Path:
    found = shutil.which("runsc")
    if found is None:
        raise SandboxUnavailable(f"There is no runsc on the PATH. {_INSTALL}")
    version = _version(Path(found))
    day = re.search(r"(20\d\d)\d{4}", version)
    if day is None or int(day[1]) < _OLDEST:
        raise SandboxUnavailable(f"{found} is {version or 'of no known version'}: one of {_OLDEST} or later is needed. {_INSTALL}")
    return Path(found)


def _version(runsc: Path) -> str:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run([runsc, "--version"], capture_output=True, env={}, timeout=_VERSION_S, check=False)
        return done.stdout.decode(errors="replace").partition("\n")[0].removeprefix("runsc version ").strip()
    return ""


def _gaps(setup: Setup) -> list[str]:
    missing = {
        "memory limit is per process, by address space: no control group for memory can be made": setup.cgroups.memory is None,
        "CPU time is limited per process and not counted: no control group for it can be made": setup.cgroups.cpu is None,
        "commands are user 0 of the sandbox, without capabilities: an ordinary user can map no other one": setup.ids.outside is None,
        "after a kill of the executor its sandboxes end with the next start: there is no setpriv (util-linux)": not setup.dies_with_parent,
    }
    always = "a command can speak in the name of its session's agent: gVisor can't hide what one process has open from others"
    return [*(text for text, applies in missing.items() if applies), always]
