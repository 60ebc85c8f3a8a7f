"""Commands on a rung, for the contract of sandboxes: each in a session of its own, or many in one, where starting one takes long."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.access import give_workspace
from dualtrack.sandbox.one_shot import OneShot
from dualtrack.sandbox.port import Command, Outcome
from dualtrack.sandbox.sessions import Session, SessionRequest, Sessions
from dualtrack.sandbox.trees import move_entries
from dualtrack.settings import SandboxSettings


class OwnedOneShot(OneShot):
    """Gives the workspace to the sandbox's user first, as the pool does."""

    def run(self, command: Command, workspace: Path, limits: SandboxLimits, cancel: threading.Event) -> Outcome:
        _give(workspace)
        return super().run(command, workspace, limits, cancel)


class SharedShot:
    """`Sandbox` whose commands share a session as long as it lives: for what a command can't do, whatever other ones have done before."""

    def __init__(self, sessions: Sessions, name: str) -> None:
        self.name = name
        self._sessions = sessions
        self._kept: dict[SessionRequest, Session] = {}

    def check(self) -> None:
        """Nothing to do."""

    def run(self, command: Command, workspace: Path, limits: SandboxLimits, cancel: threading.Event) -> Outcome:
        request = SessionRequest(limits, writable=command.writable)
        session = self._kept.get(request)
        if session is None or session.ended is not None:
            session = self._kept[request] = self._sessions.claim(request)
        _give(workspace)
        move_entries(workspace, session.workspace)
        session.push()
        try:
            return session.run(command, limits, cancel)
        finally:
            session.pull()
            move_entries(session.workspace, workspace)


def _give(workspace: Path) -> None:
    if os.geteuid() == 0 and workspace.is_dir():
        give_workspace(workspace, SandboxSettings().uid)
