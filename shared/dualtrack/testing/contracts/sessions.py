"""What the contracts of sessions share: fixtures, and short ways to use one. A subclass gives the fixture `sessions` (of class scope).

Commands: `session_commands`. Python: `session_python`. Limits and the certain end: `session_limits`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from dualtrack.domain.limits import KIB, MIB, SandboxLimits
from dualtrack.sandbox.port import Command, Outcome
from dualtrack.sandbox.sessions import PythonCell, Session, SessionRequest, Sessions, Sink

LIMITS = SandboxLimits(wall_time_s=30, cpu_time_s=20, memory_bytes=512 * MIB, processes=64, output_bytes=64 * KIB)

Run = Callable[..., Outcome]


class Asking:
    """Fixtures: a session, and short ways to use it."""

    @pytest.fixture(scope="class")
    @classmethod
    def kept(cls, sessions: Sessions) -> Iterator[list[Session]]:
        """The session that tests share as long as it lives."""
        kept: list[Session] = []
        yield kept
        for session in kept:
            session.close()

    @pytest.fixture
    def session(self, sessions: Sessions, kept: list[Session]) -> Session:
        if not kept or kept[-1].ended is not None:
            kept.append(sessions.claim(SessionRequest(LIMITS)))
        return kept[-1]

    @pytest.fixture
    def fresh(self, sessions: Sessions) -> Iterator[Session]:
        """A session that is nobody else's."""
        session = sessions.claim(SessionRequest(LIMITS))
        yield session
        session.close()

    @pytest.fixture
    def run(self, session: Session) -> Run:
        return runner(session)

    @pytest.fixture
    def python(self, session: Session) -> Run:
        return python_runner(session)


def runner(session: Session) -> Run:
    """Runs `argv`; keyword arguments are limits, or `stdin`, `env`, `cancel`, `sink`."""

    def run(*argv: str, cancel: threading.Event | None = None, sink: Sink | None = None, **others: object) -> Outcome:
        of_command = {name: others.pop(name) for name in ("stdin", "env") if name in others}
        command = Command(argv, **of_command)  # type: ignore[arg-type]
        return session.run(command, LIMITS.model_copy(update=others), cancel or threading.Event(), sink)

    return run


def python_runner(session: Session) -> Run:
    """Runs Python source; `persistent`, or limits."""

    def python(source: str, *, persistent: bool = False, cancel: threading.Event | None = None, **others: object) -> Outcome:
        return session.python(PythonCell(source, persistent), LIMITS.model_copy(update=others), cancel or threading.Event())

    return python
