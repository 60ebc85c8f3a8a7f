"""Reaching into directories that sandboxed commands write to, without ever following a symbolic link of theirs.

A workspace keeps links as the text they are, wherever they point; so nothing on the host may go by a path of more than one name below a
workspace's root. All that touches one is built on these functions: from an open directory to one name in it, never through a link.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MAX_DEPTH: Final = 100
"""Directories below each other; each level holds a descriptor while a tree is walked."""
DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_O_PATH: Final[int] = getattr(os, "O_PATH", 0)  # Linux only


@contextlib.contextmanager
def opened(name: str | Path, flags: int, parent: int | None = None, *, mend: bool = True) -> Iterator[int]:
    """As `open_name`, for as long as the context lasts."""
    descriptor = open_name(name, flags, parent, mend=mend)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_name(name: str | Path, flags: int, parent: int | None = None, *, mend: bool = True) -> int:
    """A descriptor of one name in an open directory, made accessible to its owner first where it is not (with `mend`).

    `flags` must hold O_NOFOLLOW.
    """
    try:
        return os.open(name, flags, dir_fd=parent)
    except PermissionError:
        if not mend:
            raise
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            raise
        change_mode(name, mode & 0o777 | (0o700 if stat.S_ISDIR(mode) else 0o600), parent)
        return os.open(name, flags, dir_fd=parent)


def change_mode(name: str | Path, mode: int, parent: int | None = None) -> None:
    """Change the mode of one name in an open directory; of a link it fails (OSError), whatever the link points to."""
    if not _O_PATH:
        if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise OSError(f"{name!r} is a symbolic link")
        os.chmod(name, mode, dir_fd=parent)
        return
    # fchmodat() follows links before Linux 6.6. A descriptor that needs no right to read is the file itself.
    descriptor = os.open(name, _O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        Path(f"/proc/self/fd/{descriptor}").chmod(mode)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Seen:
    """Something in a directory tree, while its directory is open."""

    parent: int
    """Descriptor of the directory it lies in; closed when the walk goes on."""
    name: str
    status: os.stat_result
    """Its own: not that of what a link points to."""
    too_deep: bool
    """A directory that is not entered because it lies `MAX_DEPTH` levels deep."""


def walk(top: int, *, changing: bool = False) -> Iterator[Seen]:
    """Everything below an open directory, directories before what they hold.

    Args:
        top: the directory's descriptor.
        changing: a command is at work in it: what vanishes or can't be entered is left out, and no mode is changed.

    Raises:
        OSError: something can't be looked at (never for entries of a changing tree).
    """
    yield from _walk(top, 1, changing=changing)


def _walk(descriptor: int, level: int, *, changing: bool) -> Iterator[Seen]:
    passed: tuple[type[OSError], ...] = (OSError,) if changing else ()
    with os.scandir(descriptor) as listing:
        for item in listing:
            try:
                status = item.stat(follow_symlinks=False)
            except passed:
                continue
            directory = stat.S_ISDIR(status.st_mode)
            yield Seen(descriptor, item.name, status, too_deep=directory and level >= MAX_DEPTH)
            if not directory or level >= MAX_DEPTH:
                continue
            with contextlib.ExitStack() as stack:
                try:
                    child = stack.enter_context(opened(item.name, DIRECTORY_FLAGS, descriptor, mend=not changing))
                except passed:
                    continue
                yield from _walk(child, level + 1, changing=changing)
