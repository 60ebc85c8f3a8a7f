"""Single files of a snapshot, and snapshots made of input files."""

from __future__ import annotations

from pathlib import Path

import pytest

from dualtrack.domain.errors import InvalidPath, ObjectMissing, TooLarge
from dualtrack.objects.blobs import BlobStore
from dualtrack.objects.workspace import InputFile, WorkspaceStore
from dualtrack.testing.objects import MemoryStore

from .conftest import LIMITS, state


def test_entries_of_a_snapshot(store: WorkspaceStore, memory: MemoryStore, work: Path) -> None:
    (work / "out").mkdir()
    (work / "out" / "report.csv").write_text("a,b\n")
    (work / "out" / "run").write_text("#!")
    (work / "out" / "run").chmod(0o700)
    (work / "link").symlink_to("out/report.csv")
    digest = store.snapshot(work, None).digest
    entry = store.entry(digest, "/workspace/out/report.csv")
    assert (entry.path, entry.size, entry.executable) == ("out/report.csv", 4, False)
    assert memory.get(entry.blob_key) == b"a,b\n"
    assert store.entry(digest, "./out/run").executable
    for path in ("out", "link", "absent", "."):
        with pytest.raises(ObjectMissing):
            store.entry(digest, path)
    with pytest.raises(InvalidPath):
        store.entry(digest, "../etc/passwd")
    with pytest.raises(ObjectMissing):
        store.entry(None, "out/report.csv")


def test_inputs_make_the_first_workspace_without_being_copied(store: WorkspaceStore, memory: MemoryStore, work: Path) -> None:
    blob = BlobStore(memory, "ten_1").put(b"orders")
    memory.calls.clear()
    digest = store.from_inputs([InputFile("data/orders.csv", blob.size, blob.sha256), InputFile("copy", blob.size, blob.sha256)])
    assert memory.calls["put"] == 1
    assert store.from_inputs([InputFile("copy", 6, blob.sha256), InputFile("data/orders.csv", 6, blob.sha256)]) == digest
    store.restore(digest, work)
    assert state(work) == {
        "copy": ("file", b"orders", False),
        "data": ("dir", True, False),
        "data/orders.csv": ("file", b"orders", False),
    }
    assert store.snapshot(work, digest).changed == ()


@pytest.mark.parametrize("paths", [["../a"], ["a", "a"], ["a", "a/b"], ["/a"], ["./a"], ["."], [""]])
def test_inputs_with_bad_paths_are_refused(store: WorkspaceStore, paths: list[str]) -> None:
    with pytest.raises(InvalidPath):
        store.from_inputs([InputFile(path, 1, "0" * 64) for path in paths])


def test_inputs_larger_than_a_workspace_are_refused(store: WorkspaceStore) -> None:
    with pytest.raises(TooLarge, match="input files") as caught:
        store.from_inputs([InputFile("a", LIMITS.workspace_bytes + 1, "0" * 64)])
    assert caught.value.param == "inputs"


def test_a_file_behind_a_link_is_asked_for_by_its_own_path(store: WorkspaceStore, work: Path) -> None:
    (work / "out").mkdir()
    (work / "out" / "file").touch()
    (work / "latest").symlink_to("/workspace/out")
    digest = store.snapshot(work, None).digest
    for path in ("latest", "latest/file"):
        with pytest.raises(ObjectMissing, match="symbolic link \\('latest' -> '/workspace/out'\\): give the path"):
            store.entry(digest, path)
