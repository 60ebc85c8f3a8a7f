"""Finding out, by trial sandboxes, what bubblewrap can do on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import SandboxFailed, SandboxUnavailable
from dualtrack.domain.limits import SandboxLimits
from dualtrack.objects.process_dir import ProcessDirectory
from dualtrack.sandbox.access import give_workspace
from dualtrack.sandbox.bwrap_options import VARIANTS
from dualtrack.sandbox.bwrap_sandbox import BwrapSandbox, Setup
from dualtrack.sandbox.cgroups import CgroupSupport
from dualtrack.sandbox.interpreter import interpreter_prefix
from dualtrack.sandbox.programs import find_bwrap, reachable_bwrap
from dualtrack.sandbox.rung import LaunchSpec
from dualtrack.sandbox.seccomp import filter_program
from dualtrack.sandbox.spawner import Spawner
from dualtrack.settings import SandboxSettings

_log = logging.getLogger(__name__)

_TRIAL_S: Final = 20.0
_OUTPUT_BYTES: Final = 4096


def find_setup(settings: SandboxSettings, limits: SandboxLimits, cgroups: CgroupSupport, spawner: Spawner, uid: int | None) -> Setup:
    """The strongest variant that works here.

    Raises:
        SandboxUnavailable: none does; says why and what to do.
    """
    binary = find_bwrap()
    if uid is not None:
        binary = reachable_bwrap(binary, uid, settings.workspaces)
    interpreter = interpreter_prefix(uid)
    failure = ""
    for variant in VARIANTS:
        setup = Setup(binary, uid, interpreter, filter_program(), cgroups, variant)
        printed, said = trial(setup, spawner, settings, limits, ("echo", "works"))
        if printed != b"works\n":
            failure = failure or said
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


def trial(setup: Setup, spawner: Spawner, settings: SandboxSettings, limits: SandboxLimits, argv: Sequence[str]) -> tuple[bytes, str]:
    """Run a quick command in a sandbox: what it printed, and what was printed to say why it did not.

    Raises:
        SandboxUnavailable: where there can be no workspaces.
    """
    with _scratch(settings, setup.uid) as workspace:
        try:
            sandbox = BwrapSandbox(setup, spawner, LaunchSpec(workspace, limits), argv)
        except SandboxFailed as error:
            return b"", error.message
        try:
            deadline = time.monotonic() + _TRIAL_S
            ended = sandbox.wait_ended(deadline - time.monotonic())
            sandbox.kill()  # then its output ends, whatever it was doing
            printed = os.read(sandbox.output, _OUTPUT_BYTES)
        finally:
            sandbox.close()
        return printed, sandbox.said() or ("no message" if ended else f"no end after {_TRIAL_S:g} s")


@contextlib.contextmanager
def _scratch(settings: SandboxSettings, uid: int | None) -> Iterator[Path]:
    """An empty workspace, where the real ones will be."""
    try:
        with ProcessDirectory(settings.workspaces) as own:
            workspace = own.path / "trial"
            workspace.mkdir(mode=0o700)
            if uid is not None:
                give_workspace(workspace, uid)
            yield workspace
    except OSError as error:
        raise SandboxUnavailable(
            f"No workspaces can be made in {settings.workspaces} ({error}): set DUALTRACK_SANDBOX__WORKSPACES to a directory that this "
            "user may write to."
        ) from error
