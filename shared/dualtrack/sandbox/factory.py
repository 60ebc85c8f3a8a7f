"""The one place that picks a sandbox driver."""

from __future__ import annotations

import sys

from dualtrack.domain.errors import SandboxUnavailable
from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.port import Sandbox
from dualtrack.settings import SandboxSettings


def open_sandbox(settings: SandboxSettings, limits: SandboxLimits) -> Sandbox:
    """The sandbox that the settings name; `auto` is bubblewrap on Linux and docker elsewhere, and never anything weaker.

    Nothing is started yet: call `check` before taking work.

    Args:
        settings: which driver, and its settings.
        limits: the operator's limits, which `check` runs under; each `run` is given its own.
    """
    driver = settings.driver
    if driver == "auto":
        driver = "bubblewrap" if sys.platform == "linux" else "docker"
    if driver == "bubblewrap":
        from dualtrack.sandbox.bubblewrap import BubblewrapSandbox

        return BubblewrapSandbox(settings, limits)
    if driver != "docker":
        raise SandboxUnavailable(f"DUALTRACK_SANDBOX__DRIVER: there is no one-shot driver {driver}; use bubblewrap or docker.")
    from dualtrack.sandbox.docker import DockerSandbox

    return DockerSandbox(settings, limits)
