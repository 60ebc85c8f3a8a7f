"""Files of a workspace that have no name any more but take space until whoever has them open or mapped ends: no walk of the workspace finds
them. One look at all processes of this machine serves all workspaces.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_INSIDE: Final = "root/workspace"
_FRESH_S: Final = 0.9
_BLOCK: Final = 512  # unit of st_blocks, whatever the file system's
_MAX_DESCRIPTORS: Final = 20_000  # looked at of each process
_DELETED: Final = b" (deleted)"

_Id = tuple[int, int]
"""Device and inode."""


@dataclass(frozen=True, slots=True)
class _Look:
    at: float
    sizes: dict[_Id, int]
    """Bytes by workspace."""


class HiddenFiles:
    """Thread-safe. Sees only what runs on this machine and shows the workspace as `/workspace`; elsewhere (macOS) it finds nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = _Look(0.0, {})

    def size(self, workspace: os.stat_result) -> int:
        """Bytes of nameless files in the workspace of that directory; up to a second old."""
        with self._lock:
            if time.monotonic() - self._last.at > _FRESH_S:
                self._last = _Look(time.monotonic(), _sizes())
            return self._last.sizes.get((workspace.st_dev, workspace.st_ino), 0)


def _sizes() -> dict[_Id, int]:
    files: dict[_Id, dict[_Id, int]] = {}
    own = _id(_PROC / "self" / _INSIDE)
    for process in _numbers(_PROC):
        workspace = _id(process / _INSIDE)
        if workspace is not None and workspace != own:
            nameless = files.setdefault(workspace, {})
            for file, size in (*_open_files(process), *_mapped_files(process)):
                if file[0] == workspace[0]:
                    nameless[file] = max(size, nameless.get(file, 0))
    return {workspace: sum(nameless.values()) for workspace, nameless in files.items()}


def _open_files(process: Path) -> Iterator[tuple[_Id, int]]:
    for count, descriptor in enumerate(_numbers(process / "fd")):
        if count >= _MAX_DESCRIPTORS:
            return
        try:
            status = descriptor.stat()
        except OSError:  # closed meanwhile
            continue
        if status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
            yield (status.st_dev, status.st_ino), status.st_blocks * _BLOCK


def _mapped_files(process: Path) -> Iterator[tuple[_Id, int]]:
    """As large as the part that is mapped: the file itself can't be asked."""
    try:
        maps = (process / "maps").read_bytes()
    except OSError:  # it has ended, or is another user's
        return
    for line in maps.splitlines() if _DELETED in maps else ():
        if line.endswith(_DELETED):
            span, _, offset, device, inode = line.split(None, 5)[:5]
            start, _, end = span.partition(b"-")
            major, _, minor = device.partition(b":")
            yield (os.makedev(int(major, 16), int(minor, 16)), int(inode)), int(offset, 16) + int(end, 16) - int(start, 16)


def _numbers(directory: Path) -> Iterator[Path]:
    try:
        names = os.listdir(directory)  # noqa: PTH208 - texts: most are thrown away
    except OSError:
        return
    for name in names:
        if name.isdigit():
            yield directory / name


def _id(path: Path) -> _Id | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


HIDDEN_FILES: Final = HiddenFiles()
"""Of this process: all watches share its look."""
