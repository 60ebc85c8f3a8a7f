"""What a command may leave behind that is no ordinary file, or too much: it is skipped or refused, told, and cleared."""

from __future__ import annotations

import os
import socket
import stat
import time
from pathlib import Path

import pytest

from dualtrack.domain.limits import PlatformLimits
from dualtrack.objects.workspace import WorkspaceStore, WorkspaceTooLarge
from dualtrack.testing.objects import MemoryStore

from .conftest import LIMITS, nest, state


def test_pipes_sockets_and_bad_names_are_skipped_reported_and_removed(store: WorkspaceStore, work: Path) -> None:
    (work / "sub").mkdir()
    os.mkfifo(work / "sub" / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        directory = os.open(work, os.O_RDONLY)
        os.mknod("sock", stat.S_IFSOCK | 0o600, dir_fd=directory)
        os.close(directory)
        del listener
    Path(os.fsdecode(os.fsencode(work) + b"/\xff\xfe")).write_text("x")
    (work / "line\nbreak").write_text("x")
    (work / " ").write_text("x")
    (work / "kept").write_text("x")
    snapshot = store.snapshot(work, None)
    assert dict(snapshot.skipped) == {
        "sub/pipe": "FIFO",
        "sock": "socket",
        "\\xff\\xfe": "name is not UTF-8",
        "line\nbreak": "name has control characters",
        " ": "name is blank",
    }
    store.restore(snapshot.digest, work)
    assert state(work) == {"kept": ("file", b"x", False), "sub": ("dir", True, False)}


def test_sparse_bombs_are_refused_unread(store: WorkspaceStore, memory: MemoryStore, work: Path) -> None:
    with (work / "bomb").open("wb") as file:
        file.truncate(1 << 40)
    started = time.monotonic()
    with pytest.raises(WorkspaceTooLarge, match=str(LIMITS.workspace_bytes)):
        store.snapshot(work, None)
    assert time.monotonic() - started < 60
    assert memory.calls["put"] == 0
    store.restore(None, work)
    assert state(work) == {}


def test_too_many_entries_are_refused_and_cleared(store: WorkspaceStore, work: Path) -> None:
    (work / "kept").write_text("1")
    digest = store.snapshot(work, None).digest
    for n in range(LIMITS.workspace_files):
        (work / f"{n}").touch()
    with pytest.raises(WorkspaceTooLarge, match=str(LIMITS.workspace_files)) as caught:
        store.snapshot(work, digest)
    assert not caught.value.retryable
    store.restore(digest, work)
    assert state(work) == {"kept": ("file", b"1", False)}


def test_too_much_that_cannot_be_kept_is_refused(work: Path) -> None:
    store = WorkspaceStore(MemoryStore(), "ten_1", PlatformLimits(workspace_files=5000))
    for n in range(1001):
        os.mkfifo(work / f"{n}")
    with pytest.raises(WorkspaceTooLarge, match="can't be kept"):
        store.snapshot(work, None)
    store.restore(None, work)
    assert state(work) == {}


def test_very_deep_directories_are_skipped_and_removed(store: WorkspaceStore, work: Path) -> None:
    nest(work, 1200)
    snapshot = store.snapshot(work, None)
    assert [reason for _, reason in snapshot.skipped] == ["100 directories deep"]
    store.restore(None, work)
    assert state(work) == {}


def test_files_of_no_access_and_odd_modes_are_read_and_set_right(store: WorkspaceStore, work: Path) -> None:
    (work / "locked").mkdir()
    (work / "locked" / "secret").write_text("1")
    (work / "locked" / "secret").chmod(0)
    (work / "setuid").write_text("2")
    (work / "setuid").chmod(0o4755)
    (work / "locked").chmod(0)
    snapshot = store.snapshot(work, None)
    assert snapshot.files == 2
    assert snapshot.skipped == ()
    store.restore(snapshot.digest, work)
    assert (work / "locked" / "secret").read_text() == "1"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in work.rglob("*")}
    assert modes == {"locked": 0o755, "secret": 0o644, "setuid": 0o755}
