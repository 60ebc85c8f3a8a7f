"""Storing and removing what a run has left, by the product's own code, and by a reader that trusts it (the control)."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import DualtrackError
from dualtrack.domain.limits import MIB, PlatformLimits
from dualtrack.objects.nofollow import DIRECTORY_FLAGS, opened
from dualtrack.objects.trees import empty
from dualtrack.objects.workspace import WorkspaceStore
from dualtrack.testing.objects import MemoryStore

LIMITS: Final = PlatformLimits(workspace_bytes=64 * MIB, workspace_files=100)
_PATIENCE_S: Final = 20.0
_NAIVE_S: Final = 3.0
_PART: Final = 1 * MIB


@dataclass(slots=True)
class Collected:
    """What became of the results."""

    names: list[str] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    """Beginnings of what was stored."""
    bytes: int = 0
    """Accepted, as their sizes say."""
    hung: bool = False
    refused: str = ""
    """Why the whole was refused."""
    not_removed: str = ""


Collector = Callable[[Path], Collected]


def collect(workspace: Path) -> Collected:
    """As an executor does: a snapshot into an object store, then everything removed."""
    collected = Collected()

    def work() -> None:
        store = MemoryStore()
        workspaces = WorkspaceStore(store, "tenant", LIMITS)
        try:
            snapshot = workspaces.snapshot(workspace, None)
        except DualtrackError as error:
            collected.refused = error.message
        else:
            collected.names = [entry.path for entry in workspaces.manifest(snapshot.digest).entries]
            collected.bytes = snapshot.bytes
        collected.contents = [store.get(key)[:_PART] for key in store.keys("")]
        try:
            with opened(workspace, DIRECTORY_FLAGS) as top:
                empty(top)
        except OSError as error:
            collected.not_removed = str(error)

    _within(work, _PATIENCE_S, collected)
    return collected


def trusting(workspace: Path) -> Collected:
    """As a naive program does: every path is walked, opened and read; then `rmtree`."""
    collected = Collected()
    fifos: list[Path] = []
    stop = threading.Event()

    def work() -> None:
        try:
            _read_all(workspace, collected, fifos, stop)
            shutil.rmtree(workspace)
        except (OSError, RecursionError) as error:
            collected.not_removed = f"it breaks whoever reads or removes it: {type(error).__name__}"

    thread = _within(work, _NAIVE_S, collected)
    stop.set()
    for path in fifos:  # a writer comes and goes: the reader that hangs there reads on
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
    thread.join(_PATIENCE_S)
    return collected


def _read_all(workspace: Path, collected: Collected, fifos: list[Path], stop: threading.Event) -> None:
    for top, _, names in os.walk(workspace, followlinks=True):
        for name in names:
            path = Path(top, name)
            collected.names.append(os.path.relpath(path, workspace))
            if path.is_fifo():
                fifos.append(path)
            collected.bytes += path.stat().st_size
            with path.open("rb") as file:
                collected.contents.append(file.read(_PART))
                while path.is_char_device() and not stop.is_set():
                    file.read(_PART)


def _within(work: Callable[[], None], seconds: float, collected: Collected) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    collected.hung = thread.is_alive()
    return thread
