"""Sessions over every rung pass the contract; over no isolation at all as well, where what is tested is the agent and its host side."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.cgroups import detect
from dualtrack.sandbox.sessions import Session, Sessions
from dualtrack.settings import SandboxSettings
from dualtrack.testing.bare_rung import BareRung
from dualtrack.testing.contracts.sessions import SessionContract, SessionLimitsContract, SessionPythonContract
from dualtrack.testing.rung_sessions import RungSessions
from dualtrack.testing.sandbox import sandbox_workspace


class Bare:
    shares_files = True

    @pytest.fixture(scope="class")
    @classmethod
    def sessions(cls) -> Iterator[Sessions]:
        with BareRung(shares_files=cls.shares_files) as rung, sandbox_workspace() as root:
            sessions = RungSessions(rung, root)
            yield sessions
            sessions.close()


class Bubblewrap:
    cgroups = True

    @pytest.fixture(scope="class")
    @classmethod
    def sessions(cls) -> Iterator[Sessions]:
        if sys.platform != "linux":
            pytest.skip("bubblewrap runs on Linux only")
        from dualtrack.sandbox.bubblewrap import BubblewrapRung

        with sandbox_workspace() as root:
            root.chmod(0o711)
            sessions = RungSessions(BubblewrapRung(SandboxSettings(workspaces=root), SandboxLimits(), cgroups=cls.cgroups), root)
            yield sessions
            sessions.close()

    @pytest.fixture
    def counts_memory(self) -> bool:
        return self.cgroups and detect().memory is not None

    @pytest.fixture
    def counts_processes(self) -> bool:
        return self.cgroups and detect().pids is not None


class TestBubblewrap(Bubblewrap, SessionContract):
    pass


class TestBubblewrapPython(Bubblewrap, SessionPythonContract):
    pass


class TestBubblewrapLimits(Bubblewrap, SessionLimitsContract):
    pass


class TestBubblewrapWithoutControlGroups(Bubblewrap, SessionLimitsContract):
    cgroups = False


class TestBare(Bare, SessionContract):
    def test_a_read_only_session(self, sessions: Sessions) -> None:
        pytest.skip("nothing isolates it")


class TestBareMirrored(TestBare):
    """As a rung without a shared file system: files go through the agent."""

    shares_files = False


class TestBarePython(Bare, SessionPythonContract):
    pass


class TestBareLimits(Bare, SessionLimitsContract):
    own_processes = False

    @pytest.fixture
    def counts_memory(self) -> bool:
        return False

    @pytest.fixture
    def counts_processes(self) -> bool:
        return False

    def test_nothing_of_the_agent_can_be_reached_through_proc(self, fresh: Session) -> None:
        pytest.skip("root may look everywhere")

    def test_processes_are_limited_and_told(self, fresh: Session, counts_processes: bool) -> None:
        pytest.skip("root's processes are not limited")
