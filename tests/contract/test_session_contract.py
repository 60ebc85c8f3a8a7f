"""Sessions over every rung pass the contract; over no isolation at all as well, where what is tested is the agent and its host side."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.cgroups import detect
from dualtrack.sandbox.rung import Rung
from dualtrack.sandbox.sessions import Session, Sessions
from dualtrack.settings import SandboxSettings
from dualtrack.testing.bare_rung import BareRung
from dualtrack.testing.contracts.session_commands import SessionContract
from dualtrack.testing.contracts.session_limits import SessionLimitsContract
from dualtrack.testing.contracts.session_python import SessionPythonContract
from dualtrack.testing.contracts.sessions import Run
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


class OnLinux:
    """A rung that shares the kernel."""

    cgroups = True

    @classmethod
    def rung(cls, settings: SandboxSettings) -> Rung:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def sessions(cls) -> Iterator[Sessions]:
        if sys.platform != "linux":
            pytest.skip("runs on Linux only")
        with sandbox_workspace() as root:
            root.chmod(0o711)
            sessions = RungSessions(cls.rung(SandboxSettings(workspaces=root)), root)
            yield sessions
            sessions.close()

    @pytest.fixture
    def counts_memory(self) -> bool:
        return self.cgroups and detect().memory is not None

    @pytest.fixture
    def counts_processes(self) -> bool:
        return self.cgroups and detect().pids is not None


class Bubblewrap(OnLinux):
    @classmethod
    def rung(cls, settings: SandboxSettings) -> Rung:
        from dualtrack.sandbox.bubblewrap import BubblewrapRung

        return BubblewrapRung(settings, SandboxLimits(), cgroups=cls.cgroups)


class TestBubblewrap(Bubblewrap, SessionContract):
    pass


class TestBubblewrapPython(Bubblewrap, SessionPythonContract):
    pass


class TestBubblewrapLimits(Bubblewrap, SessionLimitsContract):
    pass


class TestBubblewrapWithoutControlGroups(Bubblewrap, SessionLimitsContract):
    cgroups = False


class Landlock(OnLinux):
    newest_abi: int | None = None

    @classmethod
    def rung(cls, settings: SandboxSettings) -> Rung:
        from dualtrack.sandbox.inside.landlock import supported_abi
        from dualtrack.sandbox.landlock import LandlockRung

        if supported_abi() < 1:
            pytest.skip("this kernel has no Landlock")
        return LandlockRung(settings, SandboxLimits(), cgroups=cls.cgroups, newest_abi=cls.newest_abi)


class TestLandlock(Landlock, SessionContract):
    pass


class TestLandlockPython(Landlock, SessionPythonContract):
    @pytest.mark.xfail(reason="no /dev/shm inside, which the locks of multiprocessing need: one of the rung's gaps")
    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_multiprocessing_and_pickle(self, python: Run, method: str) -> None:
        super().test_multiprocessing_and_pickle(python, method)


class TestLandlockLimits(Landlock, SessionLimitsContract):
    agent_is_init = False


class TestLandlockWithoutControlGroups(Landlock, SessionLimitsContract):
    agent_is_init = False
    cgroups = False
    others = 64


class TestLandlockOfAnOlderKernel(Landlock, SessionContract):
    newest_abi = 3
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
    agent_is_init = False

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
