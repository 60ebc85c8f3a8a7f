"""Benches for tests of tools: one with scripted outcomes, and one over a claimed session."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.port import Command, Outcome
from dualtrack.sandbox.sessions import PythonCell, Session

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


@dataclass(frozen=True, slots=True)
class SessionBench:
    """A bench over a claimed session."""

    session: Session
    cancel: threading.Event

    @property
    def workspace(self) -> Path:
        return self.session.workspace

    def run(self, command: Command, limits: SandboxLimits) -> Outcome:
        return self.session.run(command, limits, self.cancel)

    def python(self, cell: PythonCell, limits: SandboxLimits) -> Outcome:
        return self.session.python(cell, limits, self.cancel)
