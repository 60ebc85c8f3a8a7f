"""Single commands on a rung, without a pool."""

from __future__ import annotations

from dualtrack.domain.limits import SandboxLimits
from dualtrack.objects.own_directory import own_directory
from dualtrack.sandbox.one_shot import OneShot
from dualtrack.sandbox.rung import Rung
from dualtrack.settings import SandboxSettings
from dualtrack.testing.rung_sessions import RungSessions


class RungSandbox(OneShot):
    """`Sandbox` on a rung, with a session for each command."""

    def __init__(self, rung: Rung, settings: SandboxSettings, limits: SandboxLimits) -> None:
        super().__init__(RungSessions(rung, own_directory(settings.workspaces.absolute()).path), limits, name=rung.name.value)
