"""One command in a sandbox of its own, for those who need no session: probes, checks, tests."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import SandboxFailed, SandboxUnavailable
from dualtrack.domain.limits import SandboxLimits
from dualtrack.domain.templates import DEFAULT_TEMPLATE
from dualtrack.sandbox.port import Command, Outcome
from dualtrack.sandbox.sessions import Session, SessionRequest, Sessions

_MESSAGE_CHARS: Final = 500


class OneShot:
    """`Sandbox` over `Sessions`: each run claims a session, moves the workspace in, and back again once all its processes are gone."""

    def __init__(self, sessions: Sessions, limits: SandboxLimits, *, name: str = "one-shot", template: str = DEFAULT_TEMPLATE) -> None:
        """Takes where sessions are claimed, and the limits that `check` runs under."""
        self.name = name
        self._sessions = sessions
        self._limits = limits
        self._template = template

    def check(self) -> None:
        """See `Sandbox.check`."""
        try:
            session = self._claim(self._limits, writable=True)
            try:
                outcome = session.run(Command(("python3", "-I", "-c", "print(6 * 7)")), self._limits, threading.Event())
            finally:
                session.close()
        except SandboxFailed as error:
            raise SandboxUnavailable(error.message) from error
        if outcome.exit_code != 0 or outcome.stdout.strip() != b"42":
            said = outcome.stderr.decode(errors="replace").strip()[-_MESSAGE_CHARS:]
            raise SandboxUnavailable(
                f"The sandbox works but Python does not run in it ({outcome.note or f'exit status {outcome.exit_code}'}: {said}). "
                "Install the system's python3 (such as: apt-get install python3)."
            )

    def run(self, command: Command, workspace: Path, limits: SandboxLimits, cancel: threading.Event) -> Outcome:
        """See `Sandbox.run`. The workspace must be on the file system of the sessions' own; it is empty while the command runs."""
        if not workspace.is_dir():
            raise SandboxFailed(f"There is no workspace directory {workspace}.")
        session = self._claim(limits, writable=command.writable)
        try:
            session.adopt(workspace)
            outcome = session.run(command, limits, cancel)
            session.pull()
        finally:
            session.close(keep=workspace)
        return outcome

    def _claim(self, limits: SandboxLimits, *, writable: bool) -> Session:
        return self._sessions.claim(SessionRequest(limits, self._template, writable))
