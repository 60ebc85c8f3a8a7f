"""Looking at and removing directory trees that nobody trusts: what a sandboxed command has left behind.

Nothing here follows a symbolic link, opens a FIFO or device, or goes by a path of more than one name (see `objects.nofollow`).
Callers make sure that no process of the sandbox is left.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Self

from dualtrack.domain.errors import DualtrackError
from dualtrack.domain.paths import CONTROL, MAX_NAME_BYTES, MAX_PATH_BYTES
from dualtrack.objects.cancelling import Check, never
from dualtrack.objects.nofollow import DIRECTORY_FLAGS, MAX_DEPTH, change_mode, open_name, opened

MAX_SKIPPED: Final = 1000
MAX_TARGET_BYTES: Final = 4096
"""Of a symbolic link; Linux has none longer."""
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class WorkspaceTooLarge(DualtrackError):
    """A command left more in its workspace than a workspace may hold; an observation for the agent, not a failure of ours."""

    code = "workspace_too_large"


@dataclass(frozen=True, slots=True)
class Found:
    """A file, directory or symbolic link."""

    path: str
    status: os.stat_result
    target: str = ""
    """The text of a link, wherever it points."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that no snapshot keeps."""

    path: str
    """For people: what is not UTF-8 is escaped."""
    reason: str
    """A few words, for the agent: `FIFO`, `name is not UTF-8`."""
    parent: str
    """Workspace path of the directory it lies in, `.` for the root."""
    name: str
    """As `os` functions take it."""


@dataclass(slots=True)
class Tree:
    """What a directory holds."""

    found: dict[str, Found] = field(default_factory=dict)
    """By path; parents come before what they hold."""
    skipped: list[Skipped] = field(default_factory=list)


def scan(root: int, *, max_entries: int, max_bytes: int, check: Check = never) -> Tree:
    """Everything below an open directory. Sizes are apparent sizes: a sparse file counts as what reading it would give.

    Raises:
        WorkspaceTooLarge: more than `max_entries` of any kind, or `max_bytes` of files.
        Cancelled: `check` says so.
    """
    scanner = _Scanner(os.fstat(root).st_dev, max_entries, max_bytes, check)
    scanner.directory(root, "", 0)
    scanner.leave_out_shared_files()
    return scanner.tree


class _Scanner:
    def __init__(self, device: int, max_entries: int, max_bytes: int, check: Check) -> None:
        self.tree = Tree()
        self._check = check
        self._names: dict[int, list[Found]] = {}  # by inode, of files with several
        self._device = device
        self._max_entries = self._entries_left = max_entries
        self._max_bytes = self._bytes_left = max_bytes

    def directory(self, descriptor: int, path: str, depth: int) -> None:
        _writable(descriptor)
        with os.scandir(descriptor) as listing:
            for item in listing:
                self._check()
                self._entries_left -= 1
                if self._entries_left < 0:
                    raise WorkspaceTooLarge(f"The workspace has more than {self._max_entries} files and directories: delete some.")
                self._entry(descriptor, path, item, depth)

    def _entry(self, descriptor: int, parent: str, item: os.DirEntry[str], depth: int) -> None:
        status = item.stat(follow_symlinks=False)
        path = f"{parent}/{item.name}" if parent else item.name
        reason = _unusable_name(item.name, path)
        target = ""
        if reason is None and stat.S_ISLNK(status.st_mode):
            target = os.readlink(item.name, dir_fd=descriptor)
            reason = _unusable_target(target)
        elif reason is None and stat.S_ISREG(status.st_mode):
            self._bytes_left -= status.st_size
            if self._bytes_left < 0:
                raise WorkspaceTooLarge(f"The files of the workspace have more than {self._max_bytes} bytes together: delete some.")
        elif reason is None and not stat.S_ISDIR(status.st_mode):
            reason = _kind(status.st_mode)
        elif reason is None and depth + 1 >= MAX_DEPTH:
            reason = f"{MAX_DEPTH} directories deep"
        elif reason is None and status.st_dev != self._device:
            reason = "on another file system"
        if reason is not None:
            self._skip(path, reason, parent, item.name)
            return
        found = self.tree.found[path] = Found(path, status, target)
        if status.st_nlink > 1 and stat.S_ISREG(status.st_mode):
            self._names.setdefault(status.st_ino, []).append(found)
        if stat.S_ISDIR(status.st_mode):
            with opened(item.name, DIRECTORY_FLAGS, descriptor) as child:
                self.directory(child, path, depth + 1)

    def leave_out_shared_files(self) -> None:
        """Leave out files that have names elsewhere: a sandbox whose isolation failed could link the host's files into its workspace."""
        for names in self._names.values():
            if len(names) < names[0].status.st_nlink:
                for found in names:
                    del self.tree.found[found.path]
                    parent, _, name = found.path.rpartition("/")
                    self._skip(found.path, "hard link to a file that is not only in the workspace", parent, name)

    def _skip(self, path: str, reason: str, parent: str, name: str) -> None:
        if len(self.tree.skipped) == MAX_SKIPPED:
            raise WorkspaceTooLarge(f"The workspace has more than {MAX_SKIPPED} entries that can't be kept, such as {path!r}: {reason}.")
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        self.tree.skipped.append(Skipped(shown, reason, parent or ".", name))


def _unusable_name(name: str, path: str) -> str | None:
    try:
        length = len(path) if path.isascii() else len(path.encode())
    except UnicodeEncodeError:
        return "name is not UTF-8"
    if CONTROL.search(name) is not None:
        return "name has control characters"
    if not name.strip():
        return "name is blank"
    if length > MAX_PATH_BYTES - 1 or (length > MAX_NAME_BYTES and len(name.encode()) > MAX_NAME_BYTES):
        return f"path is longer than {MAX_PATH_BYTES} bytes"
    return None


def _unusable_target(target: str) -> str | None:
    try:
        length = len(target.encode())
    except UnicodeEncodeError:
        return "link target is not UTF-8"
    return f"link target is longer than {MAX_TARGET_BYTES} bytes" if length > MAX_TARGET_BYTES else None


def _kind(mode: int) -> str:
    for test, name in ((stat.S_ISFIFO, "FIFO"), (stat.S_ISSOCK, "socket"), (stat.S_ISCHR, "device"), (stat.S_ISBLK, "device")):
        if test(mode):
            return name
    return "special file"


@contextlib.contextmanager
def parent_of(root: int, path: str) -> Iterator[tuple[int, str]]:
    """The open directory that holds a workspace path, and the path's last name."""
    *directories, name = path.split("/")
    with contextlib.ExitStack() as stack:
        current = root
        for directory in directories:
            current = stack.enter_context(opened(directory, DIRECTORY_FLAGS, current))
        yield current, name


class Parents:
    """The open directories of one workspace path after the other; neighbours share those that they have in common. For one thread."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._names: list[str] = []
        self._descriptors: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave(0)

    def of(self, path: str) -> tuple[int, str]:
        """The directory that holds a workspace path, open until the next call, and the path's last name."""
        *directories, name = path.split("/")
        common = 0
        for one, other in zip(self._names, directories, strict=False):
            if one != other:
                break
            common += 1
        self._leave(common)
        for directory in directories[common:]:
            above = self._descriptors[-1] if self._descriptors else self._root
            self._descriptors.append(open_name(directory, DIRECTORY_FLAGS, above))
            self._names.append(directory)
        return (self._descriptors[-1] if self._descriptors else self._root), name

    def _leave(self, depth: int) -> None:
        while len(self._descriptors) > depth:
            self._names.pop()
            os.close(self._descriptors.pop())


@contextlib.contextmanager
def regular_file(parent: int, name: str) -> Iterator[tuple[int, os.stat_result]]:
    """An open regular file, for reading, and its status. Raises OSError for everything else."""
    with opened(name, _FILE_FLAGS, parent) as descriptor:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{name!r} is no regular file")
        yield descriptor, status


def remove(parent: int, name: str, check: Check = never) -> None:
    """Remove whatever is there, however deep and whatever its modes. What is not there is no error. Raises `Cancelled` by `check`."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            _writable(parent)
            os.unlink(name, dir_fd=parent)
            return
        with opened(name, DIRECTORY_FLAGS, parent) as top:
            empty(top, check)
        os.rmdir(name, dir_fd=parent)


def empty(top: int, check: Check = never) -> None:
    """Remove everything in an open directory. Raises `Cancelled` by `check`."""
    while _empty(top, top, 0, check):
        pass


def _empty(descriptor: int, top: int, depth: int, check: Check) -> bool:
    """Whether there was anything. What lies too deep to be reached with the descriptors a process has is moved up to `top`."""
    _writable(descriptor)
    directories, files = _unlink_files(descriptor, check)
    for name in directories:
        if depth == MAX_DEPTH:
            own(name, descriptor)
            os.rename(name, secrets.token_hex(12), src_dir_fd=descriptor, dst_dir_fd=top)
            continue
        with opened(name, DIRECTORY_FLAGS, descriptor) as child:
            _empty(child, top, depth + 1, check)
        os.rmdir(name, dir_fd=descriptor)
    return bool(directories or files)


def _unlink_files(descriptor: int, check: Check) -> tuple[list[str], int]:
    """Unlink all that is no directory; the names of the directories, and how many others there were."""
    directories = []
    files = 0
    with os.scandir(descriptor) as listing:
        for item in list(listing):
            check()
            if item.is_dir(follow_symlinks=False):
                directories.append(item.name)
            else:
                os.unlink(item.name, dir_fd=descriptor)
                files += 1
    return directories, files


def _writable(descriptor: int) -> None:
    mode = os.fstat(descriptor).st_mode
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        os.fchmod(descriptor, 0o700)


def own(name: str, parent: int) -> None:
    """Make a directory movable: that is only for who may write to it (its `..` changes)."""
    if os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode & stat.S_IRWXU != stat.S_IRWXU:
        change_mode(name, 0o700, parent)
