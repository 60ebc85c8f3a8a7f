"""Links that commands make are there for the next command, on any executor, and mean what they meant: something inside the sandbox."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from dualtrack.domain.errors import SandboxUnavailable
from dualtrack.domain.limits import PlatformLimits, SandboxLimits
from dualtrack.objects.workspace import WorkspaceStore
from dualtrack.sandbox.factory import configured, open_rung
from dualtrack.sandbox.port import Command, Sandbox
from dualtrack.settings import SandboxSettings
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.rung_sandbox import RungSandbox
from dualtrack.testing.sandbox import sandbox_workspace


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    settings = SandboxSettings()
    found = RungSandbox(open_rung(configured(settings), settings, SandboxLimits()), settings, SandboxLimits())
    try:
        found.check()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    return found


def shell(sandbox: Sandbox, workspace: Path, script: str) -> str:
    outcome = sandbox.run(Command(("sh", "-c", script)), workspace, SandboxLimits(), threading.Event())
    assert outcome.exit_code == 0, (outcome.stdout, outcome.stderr, outcome.note)
    return outcome.stdout.decode()


def test_a_virtual_environment_and_links_of_all_kinds_outlast_a_call(sandbox: Sandbox) -> None:
    store = WorkspaceStore(MemoryStore(), "ten_1", PlatformLimits())
    with sandbox_workspace() as first, sandbox_workspace() as second:
        shell(
            sandbox,
            first,
            "python3 -m venv --without-pip v && mkdir real d && echo kept > real/file && ln -s /workspace/real absolute && "
            "ln -s ../real/file d/relative",
        )
        snapshot = store.snapshot(first, None)
        assert snapshot.skipped == ()
        store.restore(snapshot.digest, second, owner=(os.getuid(), os.getgid()) if os.getuid() == 0 else None)
        script = "v/bin/python3 -c 'import sys; print(sys.prefix)'; cat absolute/file d/relative; readlink v/bin/python3"
        assert shell(sandbox, second, script).splitlines() == [
            *("/workspace/v", "kept", "kept", "/usr/bin/python3"),
        ]
