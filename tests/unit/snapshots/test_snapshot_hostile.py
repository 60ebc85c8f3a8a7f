"""What a hostile command may leave in its workspace, beyond links: nothing of it blocks, fills or misleads the host."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dualtrack.domain.errors import InfrastructureError
from dualtrack.domain.limits import PlatformLimits
from dualtrack.objects import nofollow, trees
from dualtrack.objects.workspace import WorkspaceStore, WorkspaceTooLarge, WorkspaceUnavailable
from dualtrack.sandbox.access import give_workspace
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.sandbox import sandbox_workspace

from .conftest import nest

LIMITS = PlatformLimits(workspace_bytes=10_000_000, workspace_files=5000)


@pytest.fixture
def tmp_path(fast_path: Path) -> Path:
    return fast_path


def stored(memory: MemoryStore) -> bytes:
    return b"".join(memory.get(key) for key in memory.keys(""))


# --- size -----------------------------------------------------------------------------------------------------------


def test_many_sparse_files_count_together_and_are_not_read(store: WorkspaceStore, memory: MemoryStore, work: Path) -> None:
    for n in range(100):
        with (work / f"{n}").open("wb") as file:
            file.truncate(LIMITS.workspace_bytes // 50)
    with pytest.raises(WorkspaceTooLarge, match="bytes together"):
        store.snapshot(work, None)
    assert memory.calls.total() == 0


def test_a_terabyte_of_holes_is_refused_at_once_and_removed(store: WorkspaceStore, memory: MemoryStore, work: Path) -> None:
    (work / "kept").write_text("1")
    digest = store.snapshot(work, None).digest
    os.truncate(work / "kept", 1 << 40)
    memory.calls.clear()
    with pytest.raises(WorkspaceTooLarge):
        store.snapshot(work, digest)
    store.restore(digest, work)
    assert (work / "kept").read_text() == "1"


def test_a_file_that_grows_while_it_is_read_is_read_no_further(
    store: WorkspaceStore, memory: MemoryStore, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(20):
        (work / f"{n:02}").write_text("small")
    real = trees.regular_file

    @contextlib.contextmanager
    def grown(parent: int, name: str) -> Iterator[tuple[int, os.stat_result]]:
        with real(parent, name) as opened:
            if name == "07":
                os.truncate(work / name, 1 << 40)
            yield opened

    monkeypatch.setattr(trees, "regular_file", grown)
    with pytest.raises(WorkspaceUnavailable, match="'07' changed while the workspace was saved"):
        store.snapshot(work, None)
    assert sum(found.size for found in memory.stored("")) < 1000


# --- hard links -----------------------------------------------------------------------------------------------------


def test_a_hard_link_to_a_file_outside_is_neither_read_nor_given_away(store: WorkspaceStore, memory: MemoryStore) -> None:
    with sandbox_workspace() as work:
        outside = work.parent / "secret"
        outside.write_text("of the host")
        (work / "sub").mkdir()
        (work / "sub" / "mine").hardlink_to(outside)
        (work / "kept").write_text("1")
        before = outside.stat()
        if os.geteuid() == 0:
            give_workspace(work, 65534)
            assert (work / "kept").stat().st_uid == 65534
        snapshot = store.snapshot(work, None)
        assert snapshot.skipped == (("sub/mine", "hard link to a file that is not only in the workspace"),)
        assert snapshot.files == 1
        assert b"of the host" not in stored(memory)
        store.restore(snapshot.digest, work, owner=None)
        assert sorted(path.name for path in work.rglob("*")) == ["kept", "sub"]
        after = outside.stat()
        assert (after.st_uid, after.st_mode, after.st_size, after.st_mtime_ns) == (
            before.st_uid,
            before.st_mode,
            before.st_size,
            before.st_mtime_ns,
        )
        assert outside.read_text() == "of the host"


def test_hundreds_of_names_of_one_file_are_stored_once_and_come_back_apart(store: WorkspaceStore, memory: MemoryStore, work: Path) -> None:
    (work / "0").write_bytes(os.urandom(1000))
    for n in range(1, 500):
        (work / f"{n}").hardlink_to(work / "0")
    snapshot = store.snapshot(work, None)
    assert (snapshot.files, snapshot.skipped) == (500, ())
    assert len(stored(memory)) < 1000 + 500 * 200
    store.restore(snapshot.digest, work)
    assert {path.stat().st_nlink for path in work.iterdir()} == {1}


def test_names_of_one_file_count_as_many_files_against_the_size(store: WorkspaceStore, work: Path) -> None:
    (work / "0").write_bytes(b"x" * (LIMITS.workspace_bytes // 10))
    for n in range(1, 20):
        (work / f"{n}").hardlink_to(work / "0")
    with pytest.raises(WorkspaceTooLarge, match="bytes together"):
        store.snapshot(work, None)


# --- what is no file ------------------------------------------------------------------------------------------------


def test_devices_are_never_opened(store: WorkspaceStore, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in that can't be mistaken for anything of the machine's: a regular file that says of itself that it is a device."""
    (work / "disk").write_text("sectors")
    real = stat.S_ISREG
    monkeypatch.setattr(stat, "S_ISREG", lambda mode: False if mode == (work / "disk").stat().st_mode else real(mode))
    monkeypatch.setattr(stat, "S_ISBLK", lambda mode: mode == (work / "disk").stat().st_mode)
    snapshot = store.snapshot(work, None)
    assert snapshot.skipped == (("disk", "device"),)
    assert snapshot.files == 0


@pytest.mark.parametrize("kind", ["fifo", "symlink", "directory"])
def test_a_file_swapped_between_the_scan_and_its_reading(
    store: WorkspaceStore, memory: MemoryStore, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / "secret").write_text("of the host")
    for n in range(20):
        (work / f"{n:02}").write_text("of the host" if n else "mine")
    real = trees.scan

    def swapping(root: int, **limits: Any) -> trees.Tree:
        tree = real(root, **limits)
        (work / "00").unlink()
        if kind == "fifo":
            os.mkfifo(work / "00")
        elif kind == "symlink":
            (work / "00").symlink_to(tmp_path / "secret")
        else:
            (work / "00").mkdir()
        return tree

    monkeypatch.setattr(trees, "scan", swapping)
    started = time.monotonic()
    with pytest.raises(InfrastructureError):
        store.snapshot(work, None)
    assert time.monotonic() - started < 60
    assert memory.calls["put"] == 0


@pytest.mark.parametrize("files", [1, 40])
def test_a_directory_swapped_for_a_link_between_the_scan_and_the_reading(
    store: WorkspaceStore, memory: MemoryStore, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    outside = tmp_path / "outside"
    for directory in (outside, work / "data"):
        directory.mkdir()
        for n in range(files):
            (directory / f"{n}").write_text(f"{directory.name} {n}")
    real = trees.scan

    def swapping(root: int, **limits: Any) -> trees.Tree:
        tree = real(root, **limits)
        (work / "data").rename(tmp_path / "away")
        (work / "data").symlink_to(outside)
        return tree

    monkeypatch.setattr(trees, "scan", swapping)
    with pytest.raises(WorkspaceUnavailable):
        store.snapshot(work, None)
    assert b"outside" not in stored(memory)


@pytest.mark.parametrize("files", [1, 40])
def test_a_directory_swapped_for_a_link_while_it_is_restored(
    store: WorkspaceStore, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (work / "data").mkdir()
    for n in range(files):
        (work / "data" / f"{n}").write_text(f"mine {n}")
    digest = store.snapshot(work, None).digest
    for n in range(files):
        (work / "data" / f"{n}").unlink()
    real = trees.scan

    def swapping(root: int, **limits: Any) -> trees.Tree:
        tree = real(root, **limits)
        (work / "data").rmdir()
        (work / "data").symlink_to(outside)
        return tree

    monkeypatch.setattr(trees, "scan", swapping)
    with pytest.raises(WorkspaceUnavailable):
        store.restore(digest, work)
    assert list(outside.iterdir()) == []


# --- names and depth ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (b"line\nbreak", "name has control characters"),
        (b"\x1b]0;title\x07", "name has control characters"),
        (b"\x7f", "name has control characters"),
        ("exe\u202etxt".encode(), "name has control characters"),
        (b"\xff\xfe", "name is not UTF-8"),
        (b"\xed\xa0\x80", "name is not UTF-8"),
        (b"   ", "name is blank"),
    ],
)
@pytest.mark.parametrize("directory", [False, True])
def test_names_that_mislead_are_skipped_shown_harmlessly_and_removed(
    store: WorkspaceStore, work: Path, name: bytes, reason: str, directory: bool
) -> None:
    path = Path(os.fsdecode(os.fsencode(work) + b"/" + name))
    if directory:
        path.mkdir()
        (path / "inside").write_text("1")
    else:
        path.write_text("1")
    snapshot = store.snapshot(work, None)
    assert [why for _, why in snapshot.skipped] == [reason]
    assert all(shown.encode() for shown, _ in snapshot.skipped), "it can be written down as UTF-8"
    store.restore(None, work)
    assert list(work.iterdir()) == []


def test_the_longest_names_and_paths_come_back_and_longer_ones_are_skipped(store: WorkspaceStore, work: Path) -> None:
    longest = work / ("é" * 127 + "x")
    longest.write_text("255 bytes")
    deep = work
    for letter in "abc":
        deep = deep / (letter * 250)
        deep.mkdir()
    (deep / ("f" * 200)).write_text("953 bytes")
    (deep / ("g" * 255)).touch()
    (deep / "h").mkdir()
    (deep / "h" / ("i" * 255)).touch()
    snapshot = store.snapshot(work, None)
    assert snapshot.files == 2 + sum(
        len(os.fsencode(path.relative_to(work))) < 1024 for path in (deep / ("g" * 255), deep / "h" / ("i" * 255))
    )
    store.restore(None, work)
    store.restore(snapshot.digest, work)
    assert longest.read_text() == "255 bytes"
    assert (deep / ("f" * 200)).read_text() == "953 bytes"


def test_names_that_differ_in_case_or_unicode_form_only_stay_apart(store: WorkspaceStore, work: Path) -> None:
    names = ("README", "readme", "ReadMe", "\u00e9", "e\u0301", "\u212b", "\u00c5")
    for name in names:
        (work / name).write_text(name)
    digest = store.snapshot(work, None).digest
    store.restore(None, work)
    store.restore(digest, work)
    assert {path.name: path.read_text() for path in work.iterdir()} == {name: name for name in names}


def test_thousands_of_nested_directories_are_skipped_and_removed(store: WorkspaceStore, work: Path) -> None:
    nest(work, 4096, closed=range(0, 4096, 100))
    before = len(list(Path("/proc/self/fd").iterdir()))
    snapshot = store.snapshot(work, None)
    assert [reason for _, reason in snapshot.skipped] == [f"{nofollow.MAX_DEPTH} directories deep"]
    store.restore(None, work)
    assert list(work.iterdir()) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_directories_without_permissions_are_entered_and_come_back_open(store: WorkspaceStore, work: Path) -> None:
    for n in range(40):
        (work / f"locked{n}" / "inner").mkdir(parents=True)
        (work / f"locked{n}" / "inner" / "file").write_text(str(n))
        (work / f"locked{n}" / "inner" / "file").chmod(0)
        (work / f"locked{n}" / "inner").chmod(0)
        (work / f"locked{n}").chmod(0o111)
    snapshot = store.snapshot(work, None)
    assert (snapshot.files, snapshot.skipped) == (40, ())
    store.restore(snapshot.digest, work)
    assert {stat.S_IMODE(path.stat().st_mode) for path in work.rglob("*")} == {0o755, 0o644}
