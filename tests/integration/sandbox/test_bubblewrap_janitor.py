"""After a `kill -9` of an executor nothing of its sandboxes is left once the next one has started: proved by listing everything."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualtrack.domain.limits import SandboxLimits
from dualtrack.objects.process_dir import ProcessDirectory
from dualtrack.sandbox.bubblewrap import BubblewrapRung
from dualtrack.sandbox.cgroups import detect
from dualtrack.sandbox.group_names import group_name, remove_leftovers
from dualtrack.settings import SandboxSettings
from dualtrack.testing.contracts.sandbox import host_processes

from .standin import standin

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap runs on Linux only")

SEED = 20_261_130
ROUNDS = 3
LONGEST_S = 0.5
PROGRAM = Path(__file__).with_name("executor.py")


def groups_of(pid: int) -> list[Path]:
    return [path for parent in detect().parents() for path in parent.glob(f"dualtrack-*-{pid}-*")]


def mounts(folder: Path) -> list[str]:
    """Mounts of this machine that have to do with a directory; others come and go."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line]


def spawners_of(pid: int) -> list[str]:
    return host_processes(f"spawner_child.py {pid} ")


@pytest.fixture(params=["groups", "no groups"])
def killed(folder: Path, request: pytest.FixtureRequest) -> Iterator[tuple[list[int], str]]:
    """Process numbers of executors that were killed at random moments of their work, and what marks the processes in their sandboxes."""
    agent, marker = standin(folder)
    chance = random.Random(SEED)
    dead = []
    for _ in range(ROUNDS):
        executor = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder / "all"), str(agent.mount.source), marker, request.param],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert executor.stdout is not None
            assert executor.stdout.readline() == "started\n"
            time.sleep(chance.uniform(0.0, LONGEST_S))
        finally:
            executor.kill()
            executor.wait(60)
            if executor.stdout is not None:
                executor.stdout.close()
        dead.append(executor.pid)
    yield dead, marker
    assert not host_processes(marker)


def test_nothing_is_left_once_the_next_one_has_started(killed: tuple[list[int], str], folder: Path) -> None:
    dead, marker = killed
    agent, _ = standin(folder)
    with ProcessDirectory(folder / "all") as own:
        removed = BubblewrapRung(SandboxSettings(workspaces=folder / "all"), SandboxLimits(), agent).sweep()
        assert len(own.sweep()) >= len(dead)  # of each its own, and that of a trial that was interrupted
        assert host_processes(marker) == []
        assert [line for pid in dead for line in spawners_of(pid)] == []
        assert [path for pid in dead for path in groups_of(pid)] == []
        left = {path.name for path in (folder / "all").iterdir() if not path.name.startswith(".bwrap-")}
        assert left == {"lock", own.path.name}
        assert mounts(folder) == []
        assert all(line.startswith("control group ") for line in removed)


def test_processes_that_outlived_their_executor_are_ended() -> None:
    pids = detect().pids
    if pids is None:
        pytest.skip("no control groups can be made here")
    parent = pids.parent / f"dualtrack-test-{os.getpid()}"  # of our own: other processes on this machine tidy up as well
    make = (
        "import os, sys\n"
        "from dualtrack.sandbox.group_names import group_name\n"
        "name = group_name()\nos.mkdir(f'{sys.argv[1]}/{name}')\nprint(name, flush=True)\nos.kill(os.getpid(), 9)"
    )
    parent.mkdir()
    survivor = subprocess.Popen(["/bin/sh", "-c", "trap '' TERM; exec sleep 1000"])
    ours = parent / group_name()
    try:
        ours.mkdir()
        done = subprocess.run([sys.executable, "-c", make, str(parent)], capture_output=True, text=True, check=False)
        left = parent / done.stdout.strip()
        (left / "cgroup.procs").write_text(str(survivor.pid))
        assert remove_leftovers(parent) == [f"control group {left}, 1 processes in it"]
        assert survivor.wait(60) == -9
        assert not left.exists()
        assert ours.is_dir()  # of a living process: not touched
    finally:
        survivor.kill()
        survivor.wait(60)
        ours.rmdir()
        parent.rmdir()


def test_an_unfinished_copy_goes_when_it_is_old(folder: Path) -> None:
    agent, _ = standin(folder)
    new, old = folder / ".new-1", folder / ".new-2"
    for draft in (new, old):
        (draft / "tree").mkdir(parents=True)
    os.utime(old, (time.time() - 7200,) * 2)
    removed = BubblewrapRung(SandboxSettings(workspaces=folder), SandboxLimits(), agent, cgroups=False).sweep()
    assert removed == [f"unfinished copy {old}"]
    assert new.exists()
