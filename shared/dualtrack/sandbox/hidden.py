"""Files of a workspace that have no name any more but take space until whoever has them open or mapped ends: no walk of the workspace finds
them. One look at all processes of this machine serves all workspaces.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_FRESH_S: Final = 0.9
_SHARE: Final = 20
"""At most one part in so many of a processor goes into looking."""
_BLOCK: Final = 512  # unit of st_blocks, whatever the file system's
_MAX_DESCRIPTORS: Final = 20_000  # looked at of each process
_DELETED: Final = " (deleted)"

_Id = tuple[int, int]
"""Device and inode."""


@dataclass(frozen=True, slots=True)
class _Nameless:
    id: _Id
    size: int
    path: str
    """Where it was, as its process sees it."""


@dataclass(slots=True)
class _Holder:
    """A process that holds nameless files."""

    files: list[_Nameless] = field(default_factory=list)
    directories: set[_Id] = field(default_factory=set)
    """Its working directory, what it sees as /workspace, and what it has open (such as gVisor's server of files)."""


class HiddenFiles:
    """Thread-safe. Sees what runs on this machine, where it has a /proc; elsewhere (macOS) it finds nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0.0
        self._of_root = False
        """Whether a workspace was asked for that root owns: only then root's processes are looked at."""
        self._holders: list[_Holder] = []

    def size(self, workspace: Path, status: os.stat_result) -> int:
        """Bytes of nameless files in a workspace, a second old or, on a machine with very many processes, some seconds.

        They are told from others' by their process, which works in the workspace or has it open, or by the path they had.
        """
        own = (status.st_dev, status.st_ino)
        below = f"{workspace}/"
        with self._lock:
            if status.st_uid == 0 and not self._of_root:
                self._of_root, self._next = True, 0.0
            if time.monotonic() > self._next:
                before = time.thread_time()
                self._holders = list(_holders(of_root=self._of_root))
                self._next = time.monotonic() + max(_FRESH_S, _SHARE * (time.thread_time() - before))
            found = {
                file.id: file.size
                for holder in self._holders
                for file in holder.files
                if file.id[0] == own[0] and (own in holder.directories or file.path.startswith(below))
            }
        return sum(found.values())


def _holders(*, of_root: bool) -> Iterator[_Holder]:
    own = str(os.getpid())
    for process in _numbers(_PROC):
        if process.name == own or (not of_root and _is_root(process)):
            continue
        holder = _Holder()
        _look_at_open(process, holder)
        _look_at_mapped(process, holder)
        if holder.files:
            holder.directories |= {found for name in ("cwd", "root/workspace") if (found := _id(process / name)) is not None}
            yield holder


def _is_root(process: Path) -> bool:
    """Whether it is root's, or has ended."""
    try:
        if process.stat().st_uid != 0:
            return False
        # Its directory is root's also if it does not let others look into it, which any process may say of itself.
        for line in (process / "status").read_bytes().splitlines():
            if line.startswith(b"Uid:"):
                return int(line.split()[2]) == 0
    except OSError:
        pass
    return True


def _look_at_open(process: Path, holder: _Holder) -> None:
    for count, descriptor in enumerate(_numbers(process / "fd")):
        if count >= _MAX_DESCRIPTORS:
            return
        try:
            status = descriptor.stat()
            if stat.S_ISDIR(status.st_mode):
                holder.directories.add((status.st_dev, status.st_ino))
            elif status.st_nlink == 0 and stat.S_ISREG(status.st_mode):
                path = str(descriptor.readlink())
                holder.files.append(_Nameless((status.st_dev, status.st_ino), status.st_blocks * _BLOCK, path))
        except OSError:  # closed meanwhile
            continue


def _look_at_mapped(process: Path, holder: _Holder) -> None:
    """As large as the part that is mapped: the file itself can't be asked."""
    try:
        maps = (process / "maps").read_text(errors="replace")
    except OSError:  # it has ended, or is another user's
        return
    held = {file.id for file in holder.files}
    for line in maps.splitlines() if _DELETED in maps else ():
        if line.endswith(_DELETED):
            span, _, offset, device, inode, path = line.split(None, 5)
            start, _, end = span.partition("-")
            major, _, minor = device.partition(":")
            found = (os.makedev(int(major, 16), int(minor, 16)), int(inode))
            if found not in held:
                holder.files.append(_Nameless(found, int(offset, 16) + int(end, 16) - int(start, 16), path))


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
