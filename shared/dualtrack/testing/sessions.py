"""Sandbox sessions that isolate nothing and run nothing: their answers are a function of the test's."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import SandboxFailed
from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.port import Command, Ended, Outcome
from dualtrack.sandbox.sessions import EndReason, PythonCell, SessionRequest, Sink, Start

_ENDS: Final = {Ended.CANCELLED: EndReason.CANCELLED, Ended.EXITED: None, Ended.SIGNALLED: None}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a session was to run."""

    what: Command | PythonCell
    workspace: Path
    limits: SandboxLimits
    cancel: threading.Event
    sink: Sink | None


Answer = Callable[[Asked], Outcome]


def completed(stdout: bytes = b"", stderr: bytes = b"", exit_code: int = 0, *, background: int = 0) -> Outcome:
    """The outcome of a command that ended by itself."""
    return Outcome(Ended.EXITED, exit_code, None, stdout, stderr, 0, 0, 0.0, background=background)


class FakeSession:
    """`Session` whose workspace is the directory it has adopted; nothing is moved."""

    start = Start.COLD

    def __init__(self, name: str, answer: Answer) -> None:
        self.id = name
        self.workspace = Path("/nowhere")
        self.ended: EndReason | None = None
        self.quiet_times = 0
        self._answer = answer

    def run(self, command: Command, limits: SandboxLimits, cancel: threading.Event, sink: Sink | None = None) -> Outcome:
        return self._ask(Asked(command, self.workspace, limits, cancel, sink))

    def python(self, cell: PythonCell, limits: SandboxLimits, cancel: threading.Event, sink: Sink | None = None) -> Outcome:
        return self._ask(Asked(cell, self.workspace, limits, cancel, sink))

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        self.quiet_times += 1
        yield

    def adopt(self, directory: Path) -> None:
        self.workspace = directory

    def push(self) -> None:
        """Its files are where they are."""

    def pull(self) -> None:
        """The same."""

    def close(self, reason: EndReason = EndReason.DONE, *, keep: Path | None = None) -> None:
        if self.ended is None:
            self.ended = reason

    def _ask(self, asked: Asked) -> Outcome:
        if self.ended is not None:
            raise SandboxFailed("The session is over.")
        try:
            outcome = self._answer(asked)
        except SandboxFailed:
            self.ended = EndReason.BROKEN
            raise
        self.ended = _ENDS.get(outcome.ended, EndReason.LIMIT)
        return outcome


class FakeSessions:
    """`Sessions` whose commands end as `answer` says. `claimed` has every session there was."""

    def __init__(self, answer: Answer) -> None:
        self.claimed: list[FakeSession] = []
        self.requests: list[SessionRequest] = []
        self._answer = answer
        self._lock = threading.Lock()

    def claim(self, request: SessionRequest) -> FakeSession:
        with self._lock:
            session = FakeSession(f"fake-{len(self.claimed)}", self._answer)
            self.claimed.append(session)
            self.requests.append(request)
        return session

    def close(self) -> None:
        for session in self.claimed:
            session.close(EndReason.SHUTDOWN)
