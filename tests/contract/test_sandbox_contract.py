"""Every sandbox passes the contract."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.cgroups import detect
from dualtrack.sandbox.one_shot import OneShot
from dualtrack.sandbox.port import Sandbox
from dualtrack.settings import SandboxSettings
from dualtrack.testing.contracts.sandbox import SandboxBasics, SandboxContract
from dualtrack.testing.rung_sessions import RungSessions
from dualtrack.testing.sandbox import FakeSandbox, sandbox_workspace

linux = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap runs on Linux only")


class TestFake(SandboxBasics):
    @pytest.fixture
    def sandbox(self) -> Sandbox:
        return FakeSandbox()


class OverBubblewrap(SandboxContract):
    cgroups = True

    @pytest.fixture
    def sandbox(self) -> Iterator[Sandbox]:
        from dualtrack.sandbox.bubblewrap import BubblewrapRung

        with sandbox_workspace() as root:
            root.chmod(0o711)
            sessions = RungSessions(BubblewrapRung(SandboxSettings(workspaces=root), SandboxLimits(), cgroups=self.cgroups), root)
            yield OneShot(sessions, SandboxLimits(), name="bubblewrap")
            sessions.close()

    @pytest.fixture
    def counts_memory(self) -> bool:
        return self.cgroups and detect().memory is not None


@linux
class TestBubblewrap(OverBubblewrap):
    pass


@linux
class TestBubblewrapWithoutControlGroups(OverBubblewrap):
    cgroups = False
