"""gVisor passes the sandbox contract."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import ClassVar

import pytest

from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.cgroups import detect
from dualtrack.sandbox.gvisor import GvisorRung
from dualtrack.sandbox.port import Sandbox
from dualtrack.settings import SandboxSettings
from dualtrack.testing.contracts.sandbox import SandboxContract
from dualtrack.testing.rung_sandbox import OwnedOneShot, SharedShot
from dualtrack.testing.rung_sessions import RungSessions
from dualtrack.testing.sandbox import sandbox_workspace

INSTALL = Path(__file__).parents[2] / "scripts" / "install-runsc"
SHARING = frozenset({"test_escape", "test_no_setuid_file_is_left"})
"""Tests whose commands may share a session."""


@cache
def runsc_missing() -> str:
    """Why there is no runsc here; empty if there is one. Where it can be installed, it is, and anything else is a failure."""
    done = subprocess.run([INSTALL], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode and sys.platform == "linux" and os.geteuid() == 0 and Path("/etc/debian_version").exists():
        raise AssertionError(done.stderr)
    return done.stderr.strip() if done.returncode else ""


class TestGvisor(SandboxContract):
    known_gaps: ClassVar[Mapping[str, str]] = {
        "terminal_injection": "there is no terminal to inject into",
        "host_disks": "there are none to be seen",
    }

    @pytest.fixture(scope="class")
    @classmethod
    def sandboxes(cls) -> Iterator[tuple[Sandbox, Sandbox]]:
        if reason := runsc_missing():
            pytest.skip(reason)
        with sandbox_workspace() as folder:
            folder.chmod(0o711)
            rung = GvisorRung(SandboxSettings(workspaces=folder), SandboxLimits())
            sessions = RungSessions(rung, folder)
            yield OwnedOneShot(sessions, SandboxLimits(), name="gvisor"), SharedShot(sessions, "gvisor")
            sessions.close()
            rung.close()

    @pytest.fixture
    def sandbox(self, sandboxes: tuple[Sandbox, Sandbox], request: pytest.FixtureRequest) -> Sandbox:
        alone, shared = sandboxes
        return shared if request.node.originalname in SHARING else alone

    @pytest.fixture
    def counts_memory(self) -> bool:
        return detect().memory is not None
