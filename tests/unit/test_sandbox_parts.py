from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

import pytest
from pydantic import ValidationError

from dualtrack.domain.errors import SandboxFailed, SandboxUnavailable
from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox import cgroups, group_names, sandbox_group
from dualtrack.sandbox.access import give_workspace, may_traverse
from dualtrack.sandbox.cgroups import CgroupSupport, Controller
from dualtrack.sandbox.disk import DiskWatch
from dualtrack.sandbox.factory import configured, open_rung, open_sandboxes
from dualtrack.sandbox.port import Command, Ended
from dualtrack.sandbox.programs import kept_agent
from dualtrack.sandbox.rung import Counters, RungName
from dualtrack.sandbox.sandbox_group import SandboxGroup
from dualtrack.sandbox.watch import BackgroundWatch
from dualtrack.settings import SandboxSettings
from dualtrack.testing.sandbox import FakeSandbox, completed, sandbox_workspace


@pytest.mark.parametrize(
    ("driver", "platform", "name"),
    [
        ("auto", "linux", RungName.BUBBLEWRAP),
        ("auto", "darwin", RungName.DOCKER),
        ("docker", "linux", RungName.DOCKER),
        ("bubblewrap", "linux", RungName.BUBBLEWRAP),
        ("gvisor", "linux", RungName.GVISOR),
        ("landlock", "linux", RungName.LANDLOCK),
    ],
)
def test_the_rung_is_the_one_asked_for(
    driver: Literal["auto", "bubblewrap", "docker", "gvisor", "landlock"], platform: str, name: RungName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    settings = SandboxSettings(driver=driver)
    assert configured(settings) is name
    assert open_rung(name, settings, SandboxLimits()).name is name


def test_no_fallback_where_bubblewrap_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from dualtrack.sandbox import bwrap_setup

    def missing() -> Path:
        raise SandboxUnavailable("No bubblewrap here")

    monkeypatch.setattr(bwrap_setup, "find_bwrap", missing)
    settings = SandboxSettings(driver="bubblewrap", workspaces=tmp_path)
    with pytest.raises(SandboxUnavailable, match="No bubblewrap here"), open_sandboxes(settings, SandboxLimits()):
        pass


def test_traversal_by_mode_bits(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "x").mkdir()
    closed.chmod(0o700)
    assert may_traverse(closed / "x", os.getuid()) is may_traverse(tmp_path, os.getuid())
    assert not may_traverse(closed / "x", 12345)
    with pytest.raises(SandboxFailed, match="can't enter"):
        give_workspace(closed / "x", 12345)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")
def test_a_workspace_is_given_away_without_following_links() -> None:
    with sandbox_workspace() as workspace:
        outside = workspace.parent / "outside"
        outside.write_text("mine")
        (workspace / "a/b").mkdir(parents=True)
        (workspace / "a/b/file").touch()
        (workspace / "link").symlink_to(outside)
        (workspace / "directory_link").symlink_to(workspace.parent)
        give_workspace(workspace, 12345)
        owners = {path.lstat().st_uid for path in (workspace, *workspace.rglob("*"))}
        assert owners == {12345}
        assert outside.stat().st_uid == 0
        assert workspace.parent.stat().st_uid == 0


def test_a_directory_that_can_not_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SandboxUnavailable, match=r"file/workspaces for workspaces can't be used.*DUALTRACK_SANDBOX__WORKSPACES"):
        kept_agent(tmp_path / "file" / "workspaces")


def test_directories_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = SandboxSettings(workspaces=Path("here"), template_store=Path("there"))
    assert (settings.workspaces, settings.template_store, settings.wheels) == (tmp_path / "here", tmp_path / "there", None)


@pytest.mark.parametrize(("least", "most", "wrong"), [(9, 8, True), (8, 8, False), (9, 0, False)])
def test_a_pool_has_no_less_than_its_least(least: int, most: int, *, wrong: bool) -> None:
    with pytest.raises(ValidationError, match=r"pool_min \(9\) is more than pool_max \(8\)") if wrong else nullcontext():
        SandboxSettings(pool_min=least, pool_max=most)
    assert SandboxSettings(pool_max=1).pool_max == 1  # the default of the other gives way


def test_disk_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("dualtrack.sandbox.disk.time.monotonic", lambda: now[0])
    watch = DiskWatch(tmp_path, SandboxLimits(disk_bytes=100_000, disk_files=10))
    (tmp_path / "big").write_bytes(b"x" * 200_000)
    assert watch.look() is None  # not yet time to look
    now[0] += 5
    assert watch.look() is Ended.DISK
    (tmp_path / "big").unlink()
    now[0] += 5
    assert watch.look() is None
    for n in range(11):
        (tmp_path / str(n)).touch()
    now[0] += 5
    assert watch.look() is Ended.DISK_FILES
    for n in range(11):
        (tmp_path / str(n)).unlink()
    (tmp_path / "/".join(["d"] * 101)).mkdir(parents=True)
    watch = DiskWatch(tmp_path, SandboxLimits(disk_files=1000))
    now[0] += 5
    assert watch.look() is Ended.DISK_DEPTH


def test_between_commands_the_disk_is_looked_at_when_something_has_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, used = [100.0], [1.0]
    monkeypatch.setattr("dualtrack.sandbox.disk.time.monotonic", lambda: now[0])
    limits = SandboxLimits(disk_bytes=100_000, cpu_time_s=50)
    watch = BackgroundWatch(lambda: Counters(cpu_s=used[0]), DiskWatch(tmp_path, limits), limits)
    now[0] += 5
    assert watch.look() is None
    (tmp_path / "big").write_bytes(b"x" * 200_000)
    now[0] += 5
    assert watch.look() is None, "nothing inside can have written it"
    used[0] += 0.5
    now[0] -= 5
    assert watch.look() is None, "it is too early to look"
    now[0] += 5
    assert watch.look() is Ended.DISK, "though nothing has run since"
    used[0] = 51.0
    assert watch.look() is Ended.CPU_TIME


def test_between_commands_the_disk_is_looked_at_where_nothing_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("dualtrack.sandbox.disk.time.monotonic", lambda: now[0])
    limits = SandboxLimits(disk_bytes=100_000)
    watch = BackgroundWatch(Counters, DiskWatch(tmp_path, limits), limits)
    now[0] += 5
    assert watch.look() is None
    (tmp_path / "big").write_bytes(b"x" * 200_000)
    now[0] += 5
    assert watch.look() is Ended.DISK


V2_MOUNT = "30 20 0:26 / {point} rw,nosuid - cgroup2 cgroup2 rw\n"


@pytest.fixture
def v2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A version 2 hierarchy of plain files: this process in /slice/own."""
    root = tmp_path / "cgroup"
    (root / "slice" / "own").mkdir(parents=True)
    mounts, processes = tmp_path / "mountinfo", tmp_path / "proc"
    mounts.write_text(V2_MOUNT.format(point=root))
    for name, group in (("self", "/slice/own"), ("77", "/docker/abc")):
        (processes / name).mkdir(parents=True)
        (processes / name / "cgroup").write_text(f"0::{group}\n")
    monkeypatch.setattr(cgroups, "_MOUNTS", mounts)
    monkeypatch.setattr(cgroups, "_PROC", processes)
    return root


def test_v2_makes_a_sibling_where_its_own_group_passes_nothing_on(v2: Path) -> None:
    (v2 / "slice/cgroup.subtree_control").write_text("cpu memory pids")
    (v2 / "slice/own/cgroup.subtree_control").mkdir()  # can't be read or written, like a busy group
    support = cgroups.detect()
    made = Controller(2, v2 / "slice")
    assert support == CgroupSupport(made, made, made)  # plain files: no cgroup.kill
    assert support.parents() == {v2 / "slice"}
    assert "memory v2" in str(support)
    assert [path.name for path in (v2 / "slice").iterdir() if path.is_dir()] == ["own"]


def test_v2_uses_its_own_group_where_that_passes_on(v2: Path) -> None:
    (v2 / "slice/own/cgroup.subtree_control").write_text("memory pids")
    assert cgroups.detect().memory == Controller(2, v2 / "slice/own")


def test_groups_of_another_process(v2: Path) -> None:
    assert cgroups.groups_of(77) == {"": v2 / "docker/abc"}
    assert cgroups.groups_of(78) == {}


def test_groups_of_dead_processes_are_removed_and_no_others(tmp_path: Path) -> None:
    own = group_names.group_name()
    _, namespace, pid, started, unique = own.split("-")
    done = subprocess.Popen(["true"])
    done.wait()
    dead = f"dualtrack-{namespace}-{done.pid}-{started}-{unique}"
    reused = f"dualtrack-{namespace}-{pid}-{int(started) - 1}-{unique}"
    busy = f"dualtrack-{namespace}-{done.pid}-{started}-{'0' * 12}"
    elsewhere = f"dualtrack-{int(namespace) + 1}-{done.pid}-{started}-{unique}"
    parent = group_names._started(os.getppid())
    others = f"dualtrack-{namespace}-{os.getppid()}-{parent}-{unique}"
    kept = {own, busy, elsewhere, others, "dualtrack-mine", "user.slice"}
    for name in (*kept, dead, reused):
        (tmp_path / name).mkdir()
    (tmp_path / busy / "child").mkdir()  # of a control group with processes the kernel says EBUSY, likewise an OSError
    group_names.remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept
    group_names.remove_leftovers(tmp_path / "absent")


def test_a_process_that_can_not_be_seen_counts_as_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / group_names.group_name()).mkdir()

    def hidden(pid: int) -> int:
        raise FileNotFoundError(pid)

    monkeypatch.setattr(group_names, "_started", hidden)
    group_names.remove_leftovers(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_without_controllers_nothing_is_limited_or_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_MOUNTS", tmp_path / "absent")
    assert cgroups.detect() == CgroupSupport()
    assert "none" in str(CgroupSupport())
    with SandboxGroup(CgroupSupport(), 1000, 5) as group:
        group.add(os.getpid())
        assert group.counters() == Counters()
        group.kill()


def test_v2_without_controllers_still_counts_cpu_time(v2: Path) -> None:
    support = cgroups.detect()
    assert (support.memory, support.pids) == (None, None)
    assert support.cpu == Controller(2, v2 / "slice/own")


V2_FILES = {
    "memory.events": "low 0\noom 3\noom_kill 2\n",
    "memory.peak": "4096\n",
    "cpu.stat": "usage_usec 1500000\nuser_usec 1\n",
    "pids.events": "max 4\n",
}


def test_v2_limits_counters_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_group, "_REMOVAL_S", 0.0)  # plain files stay where the kernel's would vanish
    made = Controller(2, tmp_path)
    with SandboxGroup(CgroupSupport(made, made, made, made), 5000, 7) as group:
        (path,) = tmp_path.iterdir()
        assert (path / "memory.max").read_text() == "5000"
        assert (path / "memory.swap.max").read_text() == "0"
        assert (path / "pids.max").read_text() == "7"
        group.add(4321)
        assert (path / "cgroup.procs").read_text() == "4321"
        assert group.counters() == Counters()  # as on a kernel that has none of them
        for name, text in V2_FILES.items():
            (path / name).write_text(text)
        counted = Counters(cpu_s=1.5, memory_peak_bytes=4096, out_of_memory=2, forks_refused=4)
        assert group.counters() == counted
        group.kill()
        assert (path / "cgroup.kill").read_text() == "1"
    for file in path.iterdir():
        file.unlink()
    assert group.counters() == counted  # the last ones


def test_v1_limits_and_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_group, "_REMOVAL_S", 0.0)
    for name in ("memory", "pids", "cpuacct"):
        (tmp_path / name).mkdir()
    support = CgroupSupport(Controller(1, tmp_path / "memory"), Controller(1, tmp_path / "pids"), Controller(1, tmp_path / "cpuacct"))
    with SandboxGroup(support, 5000, 7) as group:
        memory, pids, cpu = (next((tmp_path / name).iterdir()) for name in ("memory", "pids", "cpuacct"))
        assert memory.name == pids.name == cpu.name
        assert (memory / "memory.limit_in_bytes").read_text() == (memory / "memory.memsw.limit_in_bytes").read_text() == "5000"
        assert (pids / "pids.max").read_text() == "7"
        group.add(4321)
        assert {(path / "cgroup.procs").read_text() for path in (memory, pids, cpu)} == {"4321"}
        (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
        (memory / "memory.max_usage_in_bytes").write_text("8192\n")
        (cpu / "cpuacct.usage").write_text("2500000000\n")
        (pids / "pids.events").write_text("max 0\n")
        assert group.counters() == Counters(cpu_s=2.5, memory_peak_bytes=8192, out_of_memory=1, forks_refused=0)


def test_the_fake_gives_its_answers_in_order_and_nothing_else(tmp_path: Path) -> None:
    made = completed(b"made")
    fake = FakeSandbox([completed(b"1"), SandboxFailed("broken"), lambda command, *_: made], unavailable="not today")
    cancel = threading.Event()
    command = Command(("python3", "-c", "x"))
    assert fake.run(command, tmp_path, SandboxLimits(), cancel).stdout == b"1"
    with pytest.raises(SandboxFailed):
        fake.run(command, tmp_path, SandboxLimits(), cancel)
    assert fake.run(command, tmp_path, SandboxLimits(), cancel) is made
    with pytest.raises(AssertionError, match="no answer left"):
        fake.run(command, tmp_path, SandboxLimits(), cancel)
    assert fake.commands == [command] * 4
    with pytest.raises(SandboxUnavailable, match="not today"):
        fake.check()
