"""Every sandbox passes the contract."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import ClassVar

import pytest

from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.bubblewrap import BubblewrapRung
from dualtrack.sandbox.cgroups import detect
from dualtrack.sandbox.inside.landlock import supported_abi
from dualtrack.sandbox.landlock import LandlockRung
from dualtrack.sandbox.port import Sandbox
from dualtrack.sandbox.rung import Rung
from dualtrack.settings import SandboxSettings
from dualtrack.testing.contracts.sandbox import SandboxBasics, SandboxContract
from dualtrack.testing.rung_sandbox import RungSandbox
from dualtrack.testing.sandbox import FakeSandbox


class TestFake(SandboxBasics):
    @pytest.fixture
    def sandbox(self) -> Sandbox:
        return FakeSandbox()


class OnLinux(SandboxContract):
    """A rung that shares the kernel."""

    cgroups = True

    def rung(self, settings: SandboxSettings) -> Rung:
        raise NotImplementedError

    @pytest.fixture
    def sandbox(self) -> Sandbox:
        if sys.platform != "linux":
            pytest.skip("runs on Linux only")
        settings = SandboxSettings()
        return RungSandbox(self.rung(settings), settings, SandboxLimits())

    @pytest.fixture
    def counts_memory(self) -> bool:
        return self.cgroups and detect().memory is not None


class TestBubblewrap(OnLinux):
    def rung(self, settings: SandboxSettings) -> Rung:
        return BubblewrapRung(settings, SandboxLimits(), cgroups=self.cgroups)


class TestBubblewrapWithoutControlGroups(TestBubblewrap):
    cgroups = False


class TestLandlock(OnLinux):
    gaps: ClassVar[Mapping[str, str]] = {
        "test_workspace_is_shared_and_persists": "nothing can be mounted: the workspace has its host path",
        "test_environment_is_scrubbed": "nothing can be mounted: HOME is the workspace's host path",
        "test_ordinary_python_works": "no /dev/shm, which the locks of multiprocessing need",
        "test_no_host_files": "that a path exists can be found out; no file is read",
        "test_no_network": "no sockets at all, so no loopback either",
        "test_no_host_processes": "that a process number is in use can be found out; /proc is refused",
        "test_unprivileged": "/proc is refused",
    }

    @pytest.fixture(autouse=True)
    def known_gap(self, request: pytest.FixtureRequest) -> None:
        reason = self.gaps.get(request.function.__name__)
        if reason is not None:
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))

    def rung(self, settings: SandboxSettings) -> Rung:
        if supported_abi() < 1:
            pytest.skip("this kernel has no Landlock")
        return LandlockRung(settings, SandboxLimits(), cgroups=self.cgroups)
