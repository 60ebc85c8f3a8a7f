"""Workspaces keep symbolic links as text. Whatever they point to, no work of ours on a workspace reaches anything outside it.

The links here lead to stand-ins beside the workspace, never to the machine's own files: these tests may run as root, and one that
fails because a link was followed must not cost anybody their /etc/shadow.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualtrack.domain.errors import InvalidPath, SandboxFailed
from dualtrack.domain.limits import PlatformLimits, SandboxLimits
from dualtrack.objects import nofollow, trees
from dualtrack.objects.blobs import BlobStore
from dualtrack.objects.file_digests import FileDigests
from dualtrack.objects.restoring import Restoring
from dualtrack.objects.workdirs import Workdirs
from dualtrack.objects.workspace import WorkspaceStore, WorkspaceUnavailable
from dualtrack.sandbox.access import give_workspace, strip_setid
from dualtrack.sandbox.disk import DiskWatch
from dualtrack.settings import SandboxSettings
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.sandbox import sandbox_workspace

from .conftest import nest

LIMITS = PlatformLimits()
OTHER_USER = 12345
SECRET = b"of the host"
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")


class Outside:
    """What lies beside a workspace: a host directory, and another job's directory, with a setuid file in each that stands for any file."""

    def __init__(self, folder: Path) -> None:
        self.host = folder / "host"
        self.job = folder / "job_other"
        self._paths = [folder, self.host, self.job]
        for directory in (self.host, self.job):
            directory.mkdir(mode=0o750)
            secret = directory / "secret"
            secret.write_bytes(SECRET)
            secret.chmod(0o4750)
            self._paths.append(secret)
        self._before = self._state()

    def _state(self) -> list[tuple[int, ...]]:
        """All that reading, writing, giving away, changing modes and removing would change."""
        found = [path.lstat() for path in self._paths]
        return [
            (s.st_ino, s.st_mode, s.st_uid, s.st_gid, s.st_nlink, s.st_size, s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns) for s in found
        ]

    def arm(self) -> None:
        """From now on nothing may happen here. The time of last access is set back so that (under relatime) any reading moves it."""
        for path in self._paths:
            os.utime(path, ns=(1, path.stat().st_mtime_ns))
        self._before = self._state()

    def assert_untouched(self) -> None:
        assert self._state() == self._before
        assert {path.read_bytes() for path in self._paths if path.name == "secret"} == {SECRET}


@pytest.fixture
def work() -> Iterator[Path]:
    with sandbox_workspace() as path:
        yield path


@pytest.fixture
def outside(work: Path) -> Outside:
    return Outside(work.parent)


def plant(work: Path, outside: Outside) -> dict[str, str]:
    """Links to everything worth reaching, at the root and deeper; their targets by path."""
    targets = {
        "up": "..",
        "far_up": "../" * 40 + str(outside.host / "secret").lstrip("/"),
        "host": str(outside.host),
        "host_file": str(outside.host / "secret"),
        "host_relative": "../host",
        "other_job": str(outside.job),
        "other_job_file": "../job_other/secret",
        "itself": "itself",
    }
    (work / "deeper").mkdir()
    found = {}
    for name, target in targets.items():
        for path in (name, f"deeper/{name}"):
            (work / path).symlink_to(target)
            found[path] = target
    return found


def links(work: Path) -> dict[str, str]:
    return {str(path.relative_to(work)): os.readlink(path) for path in work.rglob("*") if path.is_symlink()}  # noqa: PTH115 - verbatim


def swap(path: Path, target: Path | str) -> None:
    """A link where a file or directory was, as a command could leave it between two calls."""
    path.rename(path.with_name("moved-away"))
    path.symlink_to(target)


def test_snapshot_and_restore_keep_links_and_read_nothing_through_them(
    work: Path, outside: Outside, store: WorkspaceStore, memory: MemoryStore
) -> None:
    planted = plant(work, outside)
    outside.arm()
    snapshot = store.snapshot(work, None)
    assert (snapshot.files, snapshot.bytes, snapshot.skipped) == (0, 0, ())
    store.restore(None, work)
    assert list(work.iterdir()) == []
    store.restore(snapshot.digest, work)
    store.restore(snapshot.digest, work)
    assert links(work) == planted
    outside.assert_untouched()
    assert len(list(memory.keys(""))) == 1  # the manifest


@as_root
def test_ownership_goes_to_the_links_themselves(work: Path, outside: Outside, store: WorkspaceStore) -> None:
    plant(work, outside)
    digest = store.snapshot(work, None).digest
    outside.arm()
    give_workspace(work, OTHER_USER)
    assert {path.lstat().st_uid for path in (work, *work.rglob("*"))} == {OTHER_USER}
    store.restore(None, work)
    store.restore(digest, work, owner=(OTHER_USER, OTHER_USER))
    assert {path.lstat().st_uid for path in work.rglob("*")} == {OTHER_USER}
    outside.assert_untouched()


def test_setid_bits_and_sizes_outside_are_nobodys_business(work: Path, outside: Outside) -> None:
    plant(work, outside)
    (work / "deeper" / "mine").touch()
    (work / "deeper" / "mine").chmod(0o6755)
    outside.arm()
    strip_setid(work)
    assert stat.S_IMODE((work / "deeper" / "mine").stat().st_mode) == 0o755
    watch = DiskWatch(work, SandboxLimits(disk_files=30))
    watch._next = 0.0
    assert watch.look() is None
    outside.assert_untouched()


@pytest.mark.parametrize("target", ["host", "job_other"])
def test_a_directory_replaced_by_a_link_between_calls(work: Path, outside: Outside, store: WorkspaceStore, target: str) -> None:
    (work / "data").mkdir()
    (work / "data" / "secret").write_text("mine")
    (work / "data" / "new").write_text("mine too")
    digest = store.snapshot(work, None).digest
    swap(work / "data", work.parent / target)
    outside.arm()
    changed = store.snapshot(work, digest)
    assert changed.changed == ("data", "data/new", "data/secret", "moved-away/new", "moved-away/secret")
    store.restore(digest, work)
    assert not (work / "data").is_symlink()
    assert {path.name: path.read_text() for path in (work / "data").iterdir()} == {"secret": "mine", "new": "mine too"}
    store.restore(changed.digest, work)
    assert links(work) == {"data": str(work.parent / target)}
    store.restore(None, work)
    outside.assert_untouched()


def test_a_file_replaced_by_a_link_between_calls(work: Path, outside: Outside, store: WorkspaceStore) -> None:
    (work / "secret").write_bytes(SECRET)  # the very size and content of the other: it must not pass for it
    digest = store.snapshot(work, None).digest
    swap(work / "secret", outside.host / "secret")
    outside.arm()
    store.restore(digest, work)
    assert stat.S_ISREG((work / "secret").lstat().st_mode)
    outside.assert_untouched()


def test_a_link_as_the_parent_of_a_restored_file(work: Path, outside: Outside, store: WorkspaceStore, memory: MemoryStore) -> None:
    """Even if a command were still at work between the steps of a restore."""
    (work / "data").mkdir()
    (work / "data" / "file").write_text("mine")
    manifest = store.manifest(store.snapshot(work, None).digest)
    (work / "data" / "file").unlink()
    (work / "data").rmdir()
    with nofollow.opened(work, nofollow.DIRECTORY_FLAGS) as root:
        restoring = Restoring(root, manifest, BlobStore(memory, "ten_1"), FileDigests(), None)
        restoring.clear(LIMITS)
        restoring.make_directories_and_links()
        (missing,) = restoring.missing(0)
        swap(work / "data", outside.host)
        outside.arm()
        with pytest.raises(OSError, match="data"):
            restoring.fetch(missing)
        with pytest.raises(OSError, match="data"):
            restoring.make_directories_and_links()
    outside.assert_untouched()


def test_a_manifest_that_puts_files_below_a_link_is_refused(
    work: Path, outside: Outside, store: WorkspaceStore, memory: MemoryStore
) -> None:
    target = str(outside.host)
    entries = [{"path": "d", "type": "symlink", "target": target}, {"path": "d/x", "type": "dir"}]
    digest = BlobStore(memory, "ten_1").put(json.dumps({"entries": entries, "version": 1}).encode()).sha256
    outside.arm()
    with pytest.raises(InvalidPath, match="no directory"):
        store.restore(digest, work)
    outside.assert_untouched()


@pytest.mark.parametrize("changing", [False, True])
def test_a_directory_that_becomes_a_link_while_it_is_walked(work: Path, outside: Outside, *, changing: bool) -> None:
    (work / "data").mkdir()
    outside.arm()
    seen = []
    with nofollow.opened(work, nofollow.DIRECTORY_FLAGS) as top:
        guard = contextlib.nullcontext() if changing else pytest.raises(OSError, match="data")
        with guard:
            for item in nofollow.walk(top, changing=changing):
                seen.append(item.name)
                if item.name == "data":
                    swap(work / "data", outside.host)
    assert "secret" not in seen
    outside.assert_untouched()


@pytest.mark.parametrize("name", ["file", "directory", "nowhere"])
def test_a_link_itself_is_never_opened_nor_changed(work: Path, outside: Outside, name: str) -> None:
    target = {"file": outside.host / "secret", "directory": outside.host, "nowhere": outside.host / "new"}[name]
    (work / "link").symlink_to(target)
    outside.arm()
    with nofollow.opened(work, nofollow.DIRECTORY_FLAGS) as root:
        with pytest.raises(OSError, match=r"link|[Nn]ot supported"):
            nofollow.change_mode("link", 0o777, root)
        openings: list[contextlib.AbstractContextManager[object]] = [
            nofollow.opened("link", nofollow.DIRECTORY_FLAGS, root),
            trees.regular_file(root, "link"),
            trees.parent_of(root, "link/new"),
        ]
        for opening in openings:
            with pytest.raises(OSError, match="link"), opening:
                pass
        trees.remove(root, "link")
    assert list(work.iterdir()) == []
    outside.assert_untouched()


def test_a_workspace_that_is_itself_a_link_is_refused(work: Path, outside: Outside, store: WorkspaceStore) -> None:
    work.rmdir()
    work.symlink_to(outside.host)
    outside.arm()
    with pytest.raises(WorkspaceUnavailable):
        store.snapshot(work, None)
    with pytest.raises(WorkspaceUnavailable):
        store.restore(None, work)
    with pytest.raises(SandboxFailed):
        give_workspace(work, OTHER_USER)
    with pytest.raises(SandboxFailed):
        strip_setid(work)
    watch = DiskWatch(work, SandboxLimits(disk_files=1))
    watch._next = 0.0
    assert watch.look() is None
    outside.assert_untouched()
    work.unlink()
    work.mkdir()


def test_removing_directories_stops_at_links(work: Path, outside: Outside) -> None:
    with Workdirs(SandboxSettings(workspaces=work / "all", uid=OTHER_USER, hot_workspaces=1)) as workdirs:
        with workdirs.lease("job_a") as directory:
            plant(directory.path, outside)
            (directory.path / "mine").mkdir()
            swap(directory.path / "mine", outside.job)
        first = directory.path
        with workdirs.lease("job_b") as directory:
            plant(directory.path, outside)
        outside.arm()
        assert not first.exists()
        with workdirs.lease("job_c"):
            pass
        assert not directory.path.exists()
        with workdirs.lease("job_d") as directory:
            plant(directory.path, outside)
            outside.arm()
    assert not directory.path.exists()
    outside.assert_untouched()


def test_a_command_can_not_hide_files_from_the_disk_watch_by_depth(work: Path) -> None:
    nest(work, nofollow.MAX_DEPTH)
    watch = DiskWatch(work, SandboxLimits())
    watch._next = 0.0
    assert watch.look() == "disk_depth_limit"
    with nofollow.opened(work, nofollow.DIRECTORY_FLAGS) as root:
        trees.empty(root)
