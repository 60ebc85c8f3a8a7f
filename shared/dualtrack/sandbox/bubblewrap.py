"""The bubblewrap driver: Linux namespaces, a system call filter, control groups or resource limits; about 25 ms a command.

Never runs bubblewrap as root (it would be escapable): as root it drops to an unprivileged user first. Always starts it with an empty
environment. Each run is watched by the thread that started it, since `--die-with-parent` follows the thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import SandboxFailed, SandboxUnavailable
from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.access import give_workspace
from dualtrack.sandbox.binary import find_bwrap, reachable_bwrap
from dualtrack.sandbox.bwrap_options import VARIANTS
from dualtrack.sandbox.bwrap_run import BwrapRun, Setup
from dualtrack.sandbox.cgroups import CgroupSupport, CommandGroup, detect
from dualtrack.sandbox.disk import DiskWatch
from dualtrack.sandbox.interpreter import interpreter_prefix
from dualtrack.sandbox.outcome import outcome_of
from dualtrack.sandbox.port import Command, Ended, Outcome
from dualtrack.sandbox.pump import Pump
from dualtrack.sandbox.seccomp import filter_program
from dualtrack.settings import SandboxSettings

_log = logging.getLogger(__name__)

_MESSAGE_BYTES: Final = 2000


class BubblewrapSandbox:
    """`Sandbox` by bubblewrap. Thread-safe; finds out on first use what this machine allows."""

    name = "bubblewrap"

    def __init__(self, settings: SandboxSettings, limits: SandboxLimits, *, cgroups: bool = True) -> None:
        """Takes the settings and the limits that `check` runs under; `cgroups=False`: resource limits even where groups could be made."""
        self._settings = settings
        self._limits = limits
        self._with_cgroups = cgroups
        self._lock = threading.Lock()
        self._setup: Setup | None = None

    def check(self) -> None:
        """Run `python3` in a sandbox. Raises `SandboxUnavailable`, saying why and what to do."""
        setup = self._ready()
        with self._scratch(setup) as workspace:
            try:
                outcome = self._run(setup, Command(("python3", "-I", "-c", "print(6 * 7)")), workspace, self._limits, threading.Event())
            except SandboxFailed as error:
                raise SandboxUnavailable(error.message) from error
        if outcome.exit_code != 0 or outcome.stdout.strip() != b"42":
            said = outcome.stderr.decode(errors="replace").strip()[-500:]
            raise SandboxUnavailable(
                f"The sandbox works but Python does not run in it ({outcome.note or f'exit status {outcome.exit_code}'}: {said}). "
                "Install the system's python3 (such as: apt-get install python3)."
            )

    def run(self, command: Command, workspace: Path, limits: SandboxLimits, cancel: threading.Event) -> Outcome:
        """See `Sandbox.run`. As root, the workspace and all in it is given to the unprivileged user first.

        Raises:
            SandboxFailed: the sandbox itself failed.
            SandboxUnavailable: it can't work on this machine.
        """
        setup = self._ready()
        if setup.uid is not None:
            give_workspace(workspace, setup.uid)
        return self._run(setup, command, workspace, limits, cancel)

    def _ready(self) -> Setup:
        with self._lock:
            if self._setup is None:
                self._setup = self._find_setup()
            return self._setup

    def _find_setup(self) -> Setup:
        uid = self._settings.uid if os.geteuid() == 0 else None
        binary = find_bwrap()
        if uid is not None:
            binary = reachable_bwrap(binary, uid, self._settings.workspaces)
        interpreter = interpreter_prefix(uid)
        cgroups = detect() if self._with_cgroups else CgroupSupport()
        failure = ""
        for variant in VARIANTS:
            setup = Setup(binary, uid, interpreter, filter_program(), cgroups, variant)
            with self._scratch(setup) as workspace:
                try:
                    self._run(setup, Command(("true",)), workspace, self._limits, threading.Event())
                except SandboxFailed as error:
                    failure = failure or error.message
                    continue
            facts = {"binary": str(binary), "uid": uid, "variant": str(variant), "cgroups": str(cgroups)}
            _log.info("Sandbox ready", extra=facts)
            if variant != VARIANTS[0]:
                _log.warning(
                    "The sandbox works without a part of its defences (see variant): the system call filter isolates alone. In a Docker "
                    "container, security_opt systempaths=unconfined gives it the rest.",
                    extra=facts,
                )
            return setup
        raise SandboxUnavailable(
            f"bubblewrap can't make a sandbox here: {failure} Unprivileged user namespaces must be allowed: on a host, sysctl "
            "user.max_user_namespaces above 0 and, on Ubuntu, kernel.apparmor_restrict_unprivileged_userns=0; in a Docker container, "
            "the security_opt of docker-compose.yml: our seccomp profile, systempaths=unconfined, apparmor=unconfined."
        )

    @contextlib.contextmanager
    def _scratch(self, setup: Setup) -> Iterator[Path]:
        """An empty workspace for a trial run, where the real ones will be."""
        try:
            self._settings.workspaces.mkdir(mode=0o711, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".check-", dir=self._settings.workspaces) as directory:
                if setup.uid is not None:
                    give_workspace(Path(directory), setup.uid)
                yield Path(directory)
        except OSError as error:
            raise SandboxUnavailable(
                f"No workspaces can be made in {self._settings.workspaces} ({error}): set DUALTRACK_SANDBOX__WORKSPACES to a directory "
                "that this user may write to."
            ) from error

    def _run(self, setup: Setup, command: Command, workspace: Path, limits: SandboxLimits, cancel: threading.Event) -> Outcome:
        try:
            # One more process: the sandbox's own init.
            with (
                CommandGroup(setup.cgroups, limits.memory_bytes, limits.processes + 1) as group,
                BwrapRun(setup, command, workspace, limits) as run,
            ):
                run.start(group)
                watch = DiskWatch(workspace, limits).look if command.writable else _nothing_to_watch
                pumped = Pump(run.process, command.stdin, limits, cancel, kill=run.kill, watch=watch).run()
                run.wait_gone()
                out_of_memory = group.out_of_memory()
                exit_code = run.exit_code()
        except OSError as error:
            raise SandboxFailed(f"The sandbox could not be run: {error}.") from error
        if exit_code is None and pumped.stopped is None and not out_of_memory:
            said = pumped.stderr.kept[-_MESSAGE_BYTES:].decode(errors="replace").strip()
            raise SandboxFailed(f"The sandbox broke off before the command ended: {said or 'no message'}")
        return outcome_of(pumped, exit_code, limits, out_of_memory=out_of_memory)


def _nothing_to_watch() -> Ended | None:
    return None
