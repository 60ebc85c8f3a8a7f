"""Workspaces to take snapshots of, over an object store in memory."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dualtrack.domain.limits import PlatformLimits
from dualtrack.objects.file_digests import file_clock_ns
from dualtrack.objects.workspace import WorkspaceStore
from dualtrack.testing.objects import MemoryStore

LIMITS = PlatformLimits(workspace_bytes=10_000_000, workspace_files=500)

State = dict[str, tuple[str, bytes | str | bool, bool]]


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def store(memory: MemoryStore) -> WorkspaceStore:
    return WorkspaceStore(memory, "ten_1", LIMITS)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


def state(directory: Path) -> State:
    """Everything there is in a directory, in terms of what a snapshot keeps; by plain means, not those under test."""
    found: State = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_symlink():
            found[name] = ("symlink", str(path.readlink()), False)
        elif path.is_dir():
            found[name] = ("dir", True, False)
        elif path.is_file():
            found[name] = ("file", path.read_bytes(), os.access(path, os.X_OK) and bool(path.stat().st_mode & 0o100))
        else:
            found[name] = ("special", True, False)
    return found


def next_tick() -> None:
    """Wait until a change made now can be told from one made before, also where the system stamps files by its fine clock (Linux 6.13)."""
    start = time.time_ns()
    while file_clock_ns() <= start:
        pass
