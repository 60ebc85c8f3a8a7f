"""Single commands on a rung without a pool, for the contract of sandboxes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.access import give_workspace
from dualtrack.sandbox.one_shot import OneShot
from dualtrack.sandbox.port import Command, Outcome
from dualtrack.settings import SandboxSettings


class OwnedOneShot(OneShot):
    """Gives the workspace to the sandbox's user first, as the pool does."""

    def run(self, command: Command, workspace: Path, limits: SandboxLimits, cancel: threading.Event) -> Outcome:
        if os.geteuid() == 0 and workspace.is_dir():
            give_workspace(workspace, SandboxSettings().uid)
        return super().run(command, workspace, limits, cancel)
