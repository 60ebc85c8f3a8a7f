"""Symbolic links are kept word for word and never followed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dualtrack.objects import trees
from dualtrack.objects.workspace import WorkspaceStore
from dualtrack.testing.objects import MemoryStore

from .conftest import state


def skipped(store: WorkspaceStore, work: Path) -> dict[str, str]:
    return dict(store.snapshot(work, None).skipped)


TARGETS = [
    *("/etc/shadow", "/usr/bin/python3", "/workspace/real", "..", "../outside", "../../../../etc/shadow", "a/../../x", "sub/..", "."),
    *("../sibling", "deeper/x", "./x", "dangling", "link", "/nonexistent", "with space", "Größe\n", "x/" * 2000 + "x"),
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target[:24])
def test_links_come_back_as_they_were_wherever_they_point(store: WorkspaceStore, work: Path, target: str) -> None:
    for path in (work / "link", work / "a" / "b" / "link"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    snapshot = store.snapshot(work, None)
    assert snapshot.skipped == ()
    assert (snapshot.files, snapshot.changed) == (0, ("a/b/link", "link"))
    store.restore(None, work)
    assert state(work) == {}
    for _ in range(2):
        store.restore(snapshot.digest, work)
        assert [os.readlink(path) for path in (work / "link", work / "a" / "b" / "link")] == [target, target]  # noqa: PTH115 - verbatim
    assert store.snapshot(work, snapshot.digest).digest == snapshot.digest


def test_links_that_can_not_be_kept_say_why(store: WorkspaceStore, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "bytes").symlink_to(os.fsdecode(b"\xff"))
    monkeypatch.setattr(trees, "MAX_TARGET_BYTES", 8)
    (work / "long").symlink_to("123456789")
    (work / "kept").symlink_to("12345678")
    assert skipped(store, work) == {"bytes": "link target is not UTF-8", "long": "link target is longer than 8 bytes"}


def test_links_are_never_followed(store: WorkspaceStore, memory: MemoryStore, work: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (work / "data").mkdir()
    (work / "data" / "secret").write_text("mine")
    digest = store.snapshot(work, None).digest
    (work / "data" / "secret").unlink()
    (work / "data").rmdir()
    (work / "data").symlink_to(outside)
    (work / "secret").symlink_to(outside / "secret")
    snapshot = store.snapshot(work, None)
    assert snapshot.files == 0
    assert not any(memory.get(key) == b"secret" for key in memory.keys(""))
    store.restore(digest, work)
    assert not (work / "data").is_symlink()
    assert (work / "data" / "secret").read_text() == "mine"
    assert (outside / "secret").read_text() == "secret"
    (work / "data" / "secret").unlink()
    (work / "data" / "secret").symlink_to(outside / "secret")
    store.restore(None, work)
    assert (outside / "secret").read_text() == "secret"
