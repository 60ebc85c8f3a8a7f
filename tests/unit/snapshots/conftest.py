"""Workspaces to take snapshots of, over an object store in memory."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Container, Iterator
from pathlib import Path

import pytest

from dualtrack.domain.limits import PlatformLimits
from dualtrack.objects.file_digests import file_clock_ns
from dualtrack.objects.workspace import WorkspaceStore
from dualtrack.testing.objects import MemoryStore

LIMITS = PlatformLimits(workspace_bytes=10_000_000, workspace_files=500)
FAST = "/dev/shm" if Path("/dev/shm").is_dir() else None

State = dict[str, tuple[str, bytes | str | bool, bool]]


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def limits(request: pytest.FixtureRequest) -> PlatformLimits:
    """Of `store`: these, unless the module has `LIMITS` of its own."""
    found: PlatformLimits = getattr(request.module, "LIMITS", LIMITS)
    return found


@pytest.fixture
def store(memory: MemoryStore, limits: PlatformLimits) -> WorkspaceStore:
    return WorkspaceStore(memory, "ten_1", limits)


@pytest.fixture
def fast_path() -> Iterator[Path]:
    """What a module of thousands of small files takes as its `tmp_path`: in memory where that is possible."""
    with tempfile.TemporaryDirectory(prefix="dualtrack-test-", dir=FAST) as path:
        yield Path(path)


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


def contents(directory: Path) -> dict[str, bytes]:
    """The regular files below a directory, links to them included."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def nest(directory: Path, depth: int, *, closed: Container[int] = ()) -> None:
    """So many directories in each other. Of those at the levels in `closed` (`directory` is at 0) all permissions are taken."""
    descriptor = os.open(directory, os.O_RDONLY)
    for level in range(depth):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        if level in closed:
            os.fchmod(descriptor, 0)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)


def next_tick() -> None:
    """Wait until a change made now can be told from one made before, also where the system stamps files by its fine clock (Linux 6.13)."""
    start = time.time_ns()
    while file_clock_ns() <= start:
        pass
