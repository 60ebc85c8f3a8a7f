"""The one place that picks a sandbox driver."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from dualtrack.domain.errors import DualtrackError, SandboxUnavailable
from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.rung import Rung, RungName, RungReport
from dualtrack.settings import SandboxSettings

if TYPE_CHECKING:
    from dualtrack.sandbox.sandboxes import Sandboxes
    from dualtrack.sandbox.template_builds import Say


def configured(settings: SandboxSettings) -> RungName:
    """The rung that the settings name; `auto` is bubblewrap on Linux and docker elsewhere, and never anything weaker."""
    if settings.driver != "auto":
        return RungName(settings.driver)
    return RungName.BUBBLEWRAP if sys.platform == "linux" else RungName.DOCKER


def open_rung(name: RungName, settings: SandboxSettings, limits: SandboxLimits) -> Rung:
    """A rung; nothing is started yet.

    Args:
        name: which.
        settings: of sandboxes.
        limits: the operator's, which its probe runs under.

    Raises:
        SandboxUnavailable: what it is driven with is not installed.
    """
    if name is RungName.LANDLOCK:
        from dualtrack.sandbox.landlock import LandlockRung

        return LandlockRung(settings, limits)
    if name is RungName.BUBBLEWRAP:
        from dualtrack.sandbox.bubblewrap import BubblewrapRung

        return BubblewrapRung(settings, limits)
    if name is RungName.DOCKER:
        from dualtrack.sandbox.docker import DockerRung

        return DockerRung(settings, limits)
    if name is RungName.GVISOR:
        from dualtrack.sandbox.gvisor import GvisorRung

        return GvisorRung(settings, limits)
    try:
        from dualtrack.sandbox.kubernetes import KubernetesRung
    except ImportError as error:
        raise SandboxUnavailable(f"The kubernetes driver needs Python packages: install dualtrack[kubernetes] ({error}).") from error
    return KubernetesRung(settings, limits)


def open_sandboxes(settings: SandboxSettings, limits: SandboxLimits, say: Say | None = None) -> Sandboxes:
    """The executor's sandboxes, on the rung that the settings name; enter it before taking work.

    `say` is told each step of building templates, for a person; else it is logged.
    """
    from dualtrack.sandbox.sandboxes import Sandboxes

    open_configured = partial(open_rung, configured(settings), settings, limits)
    return Sandboxes(open_configured, settings, limits) if say is None else Sandboxes(open_configured, settings, limits, say=say)


def examine(settings: SandboxSettings, limits: SandboxLimits, names: Iterable[RungName] = RungName) -> Iterator[RungReport]:
    """What each rung says of this machine, by a real run of each."""
    for name in names:
        try:
            yield open_rung(name, settings, limits).probe()
        except DualtrackError as error:
            yield RungReport(name, works=False, strength="", found={}, problem=error.message)
