"""A snapshot after another one: what changed is seen and named, and what is unchanged costs nothing."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from dualtrack.objects import trees
from dualtrack.objects.file_digests import FileDigests, file_clock_ns
from dualtrack.objects.workspace import WorkspaceStore
from dualtrack.testing.objects import MemoryStore

from .conftest import LIMITS, next_tick


def test_changed_paths_are_named(store: WorkspaceStore, work: Path) -> None:
    (work / "sub").mkdir()
    for name in ("kept", "edited", "removed", "sub/kept", "script"):
        (work / name).write_text("1")
    first = store.snapshot(work, None)
    assert first.changed == ("edited", "kept", "removed", "script", "sub/kept")
    assert (first.files, first.bytes) == (5, 5)
    (work / "edited").write_text("2")
    (work / "removed").unlink()
    (work / "sub" / "added").write_text("3")
    (work / "script").chmod(0o755)
    (work / "empty").mkdir()
    second = store.snapshot(work, first.digest)
    assert second.changed == ("edited", "removed", "script", "sub/added")
    assert store.snapshot(work, second.digest).changed == ()


def test_only_new_content_is_stored(store: WorkspaceStore, memory: MemoryStore, work: Path) -> None:
    for n in range(10):
        (work / f"{n}").write_text(f"content {n}")
    first = store.snapshot(work, None)
    assert memory.calls["put"] == 11
    (work / "3").write_text("content 4")
    (work / "5").write_text("new")
    store.snapshot(work, first.digest)
    assert memory.calls["put"] == 11 + 1 + 1  # the new content and the manifest


def test_a_fresh_process_asks_nothing_about_what_the_previous_snapshot_names(memory: MemoryStore, work: Path) -> None:
    for n in range(20):
        (work / f"{n}").write_text(f"content {n}")
    first = WorkspaceStore(memory, "ten_1", LIMITS).snapshot(work, None)
    other = MemoryStore()  # as a process sees it that has not met these blobs
    for key in memory.keys(""):
        other.put(key, memory.get(key))
    other.calls.clear()
    assert WorkspaceStore(other, "ten_1", LIMITS).snapshot(work, first.digest).digest == first.digest
    assert (other.calls["put"], other.calls["head"]) == (0, 0)


def test_unchanged_files_are_not_read_again(store: WorkspaceStore, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(5):
        (work / f"{n}").write_text(f"content {n}")
    next_tick()
    first = store.snapshot(work, None)
    opened: list[str] = []
    real = trees.regular_file

    def noting(parent: int, name: str) -> AbstractContextManager[tuple[int, os.stat_result]]:
        opened.append(name)
        return real(parent, name)

    monkeypatch.setattr(trees, "regular_file", noting)
    assert store.snapshot(work, first.digest).digest == first.digest
    assert opened == []
    (work / "3").write_text("other")
    store.snapshot(work, first.digest)
    assert opened == ["3"]


def test_a_change_that_hides_behind_size_and_mtime_is_seen(store: WorkspaceStore, work: Path) -> None:
    path = work / "a"
    path.write_text("aaaa")
    os.utime(path, (1, 1))
    next_tick()
    first = store.snapshot(work, None)
    path.write_text("bbbb")
    os.utime(path, (1, 1))
    second = store.snapshot(work, first.digest)
    assert second.changed == ("a",)
    assert store.entry(second.digest, "a").sha256 != store.entry(first.digest, "a").sha256


def test_changes_within_one_tick_of_the_file_clock_are_seen(store: WorkspaceStore, work: Path) -> None:
    previous = None
    seen = set()
    for n in range(200):
        (work / "a").write_text(f"{n:04}")
        previous = store.snapshot(work, previous).digest
        seen.add(previous)
    assert len(seen) == 200


def test_restoring_what_is_there_fetches_nothing(store: WorkspaceStore, memory: MemoryStore, work: Path) -> None:
    for n in range(5):
        (work / f"{n}").write_text(f"content {n}")
    digest = store.snapshot(work, None).digest
    before = {path.name: path.stat().st_ino for path in work.iterdir()}
    memory.calls.clear()
    store.restore(digest, work)
    assert memory.calls["stream"] == 0
    (work / "3").write_text("changed")
    store.restore(digest, work)
    assert memory.calls["stream"] == 1
    after = {path.name: path.stat().st_ino for path in work.iterdir()}
    assert {name for name in before if before[name] != after[name]} <= {"3"}


def test_only_so_many_file_digests_are_remembered(tmp_path: Path) -> None:
    digests = FileDigests(max_files=2)
    statuses = []
    for n in range(3):
        (tmp_path / str(n)).touch()
        statuses.append((tmp_path / str(n)).stat())
    next_tick()
    for status in statuses:
        digests.remember(status, "digest", read_ns=file_clock_ns())
    assert [digests.get(status) for status in statuses] == [None, "digest", "digest"]
