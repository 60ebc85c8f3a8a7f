"""The in-sandbox agent and its host side, without any isolation between them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.port import Command
from dualtrack.sandbox.rung import LaunchSpec
from dualtrack.sandbox.session import AgentSession
from dualtrack.sandbox.sessions import PythonCell
from dualtrack.testing.bare_rung import BareRung

LIMITS = SandboxLimits(wall_time_s=20, processes=4000)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[AgentSession]:
    with BareRung() as rung:
        session = rung.session(LaunchSpec(tmp_path, LIMITS))
        try:
            yield session
        finally:
            session.close()


def test_command_and_cells(session: AgentSession) -> None:
    outcome = session.run(Command(("sh", "-c", "cat; echo err >&2; exit 3"), stdin=b"in"), LIMITS, threading.Event())
    assert (outcome.stdout, outcome.stderr, outcome.exit_code) == (b"in", b"err\n", 3)
    assert session.python(PythonCell("print(6 * 7)"), LIMITS, threading.Event()).stdout == b"42\n"
    session.python(PythonCell("x = 41", persistent=True), LIMITS, threading.Event())
    assert session.python(PythonCell("x + 1", persistent=True), LIMITS, threading.Event()).stdout == b"42\n"
