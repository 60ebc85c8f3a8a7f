"""Docker passes the contracts of sandboxes and of sessions, where there is an engine (the gate has one)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.docker import DockerRung
from dualtrack.sandbox.one_shot import OneShot
from dualtrack.sandbox.port import Sandbox
from dualtrack.sandbox.sessions import Sessions
from dualtrack.settings import SandboxSettings
from dualtrack.testing.contracts.sandbox import SandboxContract
from dualtrack.testing.contracts.session_commands import SessionContract
from dualtrack.testing.contracts.session_limits import SessionLimitsContract
from dualtrack.testing.contracts.session_python import SessionPythonContract
from dualtrack.testing.rung_sessions import RungSessions
from dualtrack.testing.sandbox import sandbox_workspace


def docker_missing() -> str:
    """Why the docker driver can't be tried here; empty if it can."""
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=120).returncode != 0:
        return "no Docker engine answers"
    image = os.environ.get("DUALTRACK_SANDBOX__DOCKER_IMAGE", SandboxSettings().docker_image)
    if subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False, timeout=120).returncode != 0:
        return f"the image {image} is not here"
    return ""


@pytest.fixture(scope="module")
def docker() -> Iterator[Sessions]:
    if reason := docker_missing():
        pytest.skip(reason)
    with sandbox_workspace() as folder:
        folder.chmod(0o711)
        rung = DockerRung(SandboxSettings(workspaces=folder), SandboxLimits())
        sessions = RungSessions(rung, folder)
        yield sessions
        sessions.close()


class TestDocker(SandboxContract):
    slow_to_start = True

    @pytest.fixture
    def sandbox(self, docker: Sessions) -> Sandbox:
        return OneShot(docker, SandboxLimits(), name="docker")


class Docker:
    @pytest.fixture(scope="class")
    @classmethod
    def sessions(cls, docker: Sessions) -> Sessions:
        return docker


class TestDockerSessions(Docker, SessionContract):
    pass


class TestDockerPython(Docker, SessionPythonContract):
    pass


class TestDockerLimits(Docker, SessionLimitsContract):
    pass
