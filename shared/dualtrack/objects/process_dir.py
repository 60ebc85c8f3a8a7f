"""A directory on this machine that belongs to one process for as long as it lives, whatever way it ends.

Below one base directory each process has its own, with a locked file in it: the kernel unlocks it when the process ends, so others can tell
the living from the dead, also across containers, where process ids mean nothing. What the dead have left any other may `sweep`.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

from dualtrack.objects import nofollow, trees

_LOG: Final = logging.getLogger(__name__)
_LOCK: Final = "lock"
_PROCESS: Final = re.compile(r"[0-9]+-[0-9a-f]{8}")  # sandboxes keep things of their own beside these


class ProcessDirectory:
    """One process's directory; a context manager that removes it. Others may enter it (to reach what is in it), never list it."""

    def __init__(self, base: Path) -> None:
        """Make it below `base`, which is made too if need be.

        Raises:
            OSError: `base` is another user's, a link, or can't be written to.
        """
        self.base = base.absolute()
        make_base(self.base)
        with _locked(self.base / _LOCK):
            self.path = self.base / f"{os.getpid()}-{secrets.token_hex(4)}"
            self.path.mkdir()
            self.path.chmod(0o711)
            self._alive = _lock(self.path / _LOCK)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove it and all that is in it; nobody may be writing there. A base that somebody has removed is no error."""
        with contextlib.suppress(FileNotFoundError), _locked(self.base / _LOCK):
            remove_in(self.base, self.path.name)
        os.close(self._alive)

    def lives(self, name: str) -> bool:
        """Whether the process that has or had the directory `name` beside this one is alive."""
        if _PROCESS.fullmatch(name) is None:
            return False
        try:
            os.close(_lock(self.base / name / _LOCK, wait=False))
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False
        return False

    def sweep(self, before_removal: Callable[[Path], object] = lambda _: None) -> list[str]:
        """Remove what dead processes have left beside it; the names of what was removed. Nothing should be writing there any more.

        What can't be removed is logged, and left for the next time.

        Args:
            before_removal: called with each directory of a dead process, to end what is still using it.
        """
        with _locked(self.base / _LOCK):
            return _remove_dead(self.base, before_removal)


def _remove_dead(base: Path, before_removal: Callable[[Path], object]) -> list[str]:
    """Remove the directories of processes that have ended. Hold the base's lock."""
    removed = []
    for left in base.iterdir():
        if _PROCESS.fullmatch(left.name) is None or not left.is_dir() or left.is_symlink():
            continue
        with contextlib.suppress(BlockingIOError):
            descriptor = _lock(left / _LOCK, wait=False)
            try:
                before_removal(left)
                remove_in(base, left.name)
                removed.append(left.name)
            except OSError:  # something is mounted or still at work there: no reason for a living process not to start
                _LOG.warning("what a dead process left in %s can't be removed now", left, exc_info=True)
            finally:
                os.close(descriptor)
    return removed


def remove_in(directory: Path, name: str) -> None:
    """Remove one entry of a directory, whatever it is and however deep, without following any link in it."""
    with nofollow.opened(directory, nofollow.DIRECTORY_FLAGS) as parent:
        trees.remove(parent, name)


def make_base(base: Path) -> None:
    """Make a directory that others may enter and only this user may write to, or see that it is one.

    Raises:
        OSError: it is another user's, no directory or a link, or can't be made.
    """
    base.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        base.mkdir()
    status = base.lstat()
    # Its parent may be writable by everybody (/var/tmp): nobody else's directory, and no link, is taken for ours.
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(f"it is no directory of user {os.geteuid()}")
    base.chmod(0o711)


def _lock(path: Path, *, wait: bool = True) -> int:
    """An open, exclusively locked file; the kernel unlocks it when the process ends, however it ends. Raises BlockingIOError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = _lock(path)
    try:
        yield
    finally:
        os.close(descriptor)
