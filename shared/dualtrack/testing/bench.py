"""Benches for tests of tools: one with scripted outcomes, and one over real sessions."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.port import Command, Outcome
from dualtrack.sandbox.sessions import PythonCell, Session, SessionRequest, Sessions

Answer = Outcome | Exception


class FakeBench:
    """Gives its answers in order: an outcome, or an exception to raise. `asked` records what was to be run, and under which limits."""

    def __init__(self, answers: Iterable[Answer] = ()) -> None:
        self.asked: list[tuple[Command | PythonCell, SandboxLimits]] = []
        self._answers = iter(answers)

    def run(self, command: Command, limits: SandboxLimits) -> Outcome:
        return self._answer(command, limits)

    def python(self, cell: PythonCell, limits: SandboxLimits) -> Outcome:
        return self._answer(cell, limits)

    def _answer(self, asked: Command | PythonCell, limits: SandboxLimits) -> Outcome:
        self.asked.append((asked, limits))
        answer = next(self._answers, None)
        if answer is None:
            raise AssertionError(f"The fake bench has no answer left for {asked}.")
        if isinstance(answer, Exception):
            raise answer
        return answer


class SessionBench:
    """A bench over real sessions: the next one is claimed when a limit has ended one, with the files of that one."""

    def __init__(self, sessions: Sessions, cancel: threading.Event) -> None:
        self._sessions = sessions
        self._cancel = cancel
        self._session: Session | None = None

    @property
    def workspace(self) -> Path:
        """What is `/workspace` inside, until the next command."""
        return self._claimed().workspace

    def run(self, command: Command, limits: SandboxLimits) -> Outcome:
        return self._claimed().run(command, limits, self._cancel)

    def python(self, cell: PythonCell, limits: SandboxLimits) -> Outcome:
        return self._claimed().python(cell, limits, self._cancel)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    def _claimed(self) -> Session:
        old = self._session
        if old is None:
            self._session = self._sessions.claim(SessionRequest(SandboxLimits()))
        elif old.ended is not None:
            self._session = self._sessions.claim(SessionRequest(SandboxLimits()))
            old.close(keep=self._session.workspace)
        assert self._session is not None
        return self._session
