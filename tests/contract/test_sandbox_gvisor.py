"""gVisor passes the contracts of sandboxes and of sessions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.cgroups import detect
from dualtrack.sandbox.gvisor import GvisorRung
from dualtrack.sandbox.one_shot import OneShot
from dualtrack.sandbox.port import Ended, Sandbox
from dualtrack.sandbox.sessions import EndReason, Session, Sessions
from dualtrack.settings import SandboxSettings
from dualtrack.testing.contracts.sandbox import SandboxContract
from dualtrack.testing.contracts.session_commands import SessionContract
from dualtrack.testing.contracts.session_limits import SessionLimitsContract
from dualtrack.testing.contracts.session_python import SessionPythonContract
from dualtrack.testing.contracts.sessions import runner
from dualtrack.testing.rung_sessions import RungSessions
from dualtrack.testing.sandbox import sandbox_workspace

INSTALL = Path(__file__).parents[2] / "scripts" / "install-runsc"


def runsc_missing() -> str:
    """Why there is no runsc here; empty if there is one. Where it can be installed, it is, and anything else is a failure."""
    done = subprocess.run([INSTALL], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode and sys.platform == "linux" and os.geteuid() == 0 and Path("/etc/debian_version").exists():
        raise AssertionError(done.stderr)
    return done.stderr.strip() if done.returncode else ""


@pytest.fixture(scope="module")
def gvisor() -> Iterator[Sessions]:
    if reason := runsc_missing():
        pytest.skip(reason)
    with sandbox_workspace() as folder:
        folder.chmod(0o711)
        rung = GvisorRung(SandboxSettings(workspaces=folder), SandboxLimits())
        sessions = RungSessions(rung, folder)
        yield sessions
        sessions.close()


class TestGvisor(SandboxContract):
    slow_to_start = True

    @pytest.fixture
    def sandbox(self, gvisor: Sessions) -> Sandbox:
        return OneShot(gvisor, SandboxLimits(), name="gvisor")

    @pytest.fixture
    def counts_memory(self) -> bool:
        return detect().memory is not None


class Gvisor:
    @pytest.fixture(scope="class")
    @classmethod
    def sessions(cls, gvisor: Sessions) -> Sessions:
        return gvisor

    @pytest.fixture
    def counts_memory(self) -> bool:
        return detect().memory is not None

    @pytest.fixture
    def counts_processes(self) -> bool:
        return False


class TestGvisorSessions(Gvisor, SessionContract):
    pass


class TestGvisorPython(Gvisor, SessionPythonContract):
    pass


class TestGvisorLimits(Gvisor, SessionLimitsContract):
    def test_memory_of_a_child_is_told(self, fresh: Session, counts_memory: bool) -> None:
        """To the machine's kernel all memory inside is that of one process, gVisor's kernel: the whole sandbox ends."""
        if not counts_memory:
            pytest.skip("nothing counts it")
        outcome = runner(fresh)("sh", "-c", "python3 -c \"x = b'x' * (900 << 20)\"; echo on")
        assert (outcome.ended, outcome.note) == (Ended.MEMORY, "killed: memory limit 512 MiB")
        assert fresh.ended is EndReason.LIMIT

    def test_nothing_of_the_agent_can_be_reached_through_proc(self, fresh: Session) -> None:
        """gVisor knows no processes that can't be dumped: the agent's memory is closed to others, its descriptors are not."""
        outcome = runner(fresh)("sh", "-c", "head -c 10 /proc/$PPID/mem; cat /proc/$PPID/environ")
        assert b"Permission denied" in outcome.stderr
        given = {item.split(b"=")[0] for item in outcome.stdout.split(b"\0") if item}
        assert given == {b"PATH", b"HOME", b"LANG", b"TMPDIR"}
