"""An executor's directories on its own machine: one for each job it worked on lately, so that most calls find their workspace in place."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from dualtrack.domain.errors import InfrastructureError, SandboxUnavailable
from dualtrack.objects import nofollow, trees
from dualtrack.settings import SandboxSettings

_LOG: Final = logging.getLogger(__name__)
MAX_DIRECTORIES: Final = 64
"""Directories kept while nobody uses them."""
LEASE_TIMEOUT_S: Final = 120.0
"""Longest wait for another call of the same job, which is told to stop within seconds when it has lost its claim."""
_LOCK: Final = "lock"
_PROCESS: Final = re.compile(r"[0-9]+-[0-9a-f]{8}")  # sandboxes keep things of their own beside these


class WorkdirBusy(InfrastructureError):
    """Another call of the same job held its directory for too long."""

    code = "workdir_busy"


@dataclass(eq=False, slots=True)
class Workdir:
    """A job's directory, while it is leased."""

    path: Path
    owner: tuple[int, int] | None
    """Uid and gid that what is put into it must belong to; None where the executor is no root and everything is its own."""
    _users: int = 0
    _exclusive: bool = False
    _restoring: threading.Lock = field(default_factory=threading.Lock)


class Workdirs:
    """The directories of one process, below `settings.workspaces`; a context manager that removes them at its end. Thread-safe.

    Processes share nothing: each has a directory of its own, whose locked file tells others that it is alive. What dead ones
    have left is removed at the next start of any.
    """

    def __init__(self, settings: SandboxSettings, *, max_directories: int = MAX_DIRECTORIES, timeout_s: float = LEASE_TIMEOUT_S) -> None:
        """Raises `SandboxUnavailable` where the directory can't be used by this user."""
        self._base = settings.workspaces.absolute()
        self._max = max_directories
        self._timeout_s = timeout_s
        # Sandboxes run as an unprivileged user when we are root; that user has to reach its directory and nothing beside it.
        self._owner = (settings.uid, settings.uid) if os.geteuid() == 0 else None
        self._changed = threading.Condition()
        self._directories: OrderedDict[str, Workdir] = OrderedDict()
        try:
            _make_base(self._base)
            with _locked(self._base / _LOCK):
                _remove_dead(self._base)
                self._root = self._base / f"{os.getpid()}-{secrets.token_hex(4)}"
                self._root.mkdir()
                self._root.chmod(0o711)
                self._alive = _lock(self._root / _LOCK)
        except OSError as error:
            raise SandboxUnavailable(
                f"The directory {self._base} for workspaces can't be used: {error}. Set DUALTRACK_SANDBOX__WORKSPACES to one of your own."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove all directories. No lease may be held."""
        with _locked(self._base / _LOCK):
            _remove_in(self._base, self._root.name)
        os.close(self._alive)

    @contextlib.contextmanager
    def lease(self, job_id: str, *, shared: bool = False) -> Iterator[Workdir]:
        """The job's directory: as an earlier call of it in this process has left it, or empty.

        Leases of one job wait for each other, except that shared ones (calls that change nothing) go together.

        Raises:
            WorkdirBusy: others of the same job did not end in time.
            OSError: the directory can't be made.
        """
        directory = self._acquire(job_id, shared=shared)
        try:
            yield directory
        finally:
            self._release(directory)

    @contextlib.contextmanager
    def exclusive(self, directory: Workdir) -> Iterator[None]:
        """One at a time among those who share a directory, for bringing it to its state."""
        with directory._restoring:  # noqa: SLF001 - its own module
            yield

    def _acquire(self, job_id: str, *, shared: bool) -> Workdir:
        deadline = time.monotonic() + self._timeout_s
        with self._changed:
            while (found := self._directories.get(job_id)) is not None and found._users and (found._exclusive or not shared):  # noqa: SLF001
                if not self._changed.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    raise WorkdirBusy(f"Another call of job {job_id} has held its workspace on this executor for {self._timeout_s:.0f} s.")
            directory = found or self._make(job_id)
            self._directories.move_to_end(job_id)
            directory._users += 1  # noqa: SLF001
            directory._exclusive = not shared  # noqa: SLF001
            return directory

    def _make(self, job_id: str) -> Workdir:
        path = self._root / job_id
        if path.parent != self._root or job_id.startswith("."):
            raise ValueError(f"{job_id!r} is no job id.")
        path.mkdir(mode=0o700)
        if self._owner is not None:
            os.chown(path, *self._owner, follow_symlinks=False)
        directory = self._directories[job_id] = Workdir(path, self._owner)
        return directory

    def _release(self, directory: Workdir) -> None:
        with self._changed:
            directory._users -= 1  # noqa: SLF001
            if not directory._users:  # noqa: SLF001
                directory._exclusive = False  # noqa: SLF001
            surplus = self._take_surplus()
            self._changed.notify_all()
        for name in surplus:
            try:
                _remove_in(self._root, name)
            except OSError:  # the call that ends here has done its work; what is left goes when this process does
                _LOG.exception("a directory that is not needed any more could not be removed")

    def _take_surplus(self) -> list[str]:
        """Put the least recently used idle directories out of the way, to be removed without the lock."""
        idle = [job_id for job_id, directory in self._directories.items() if not directory._users]  # noqa: SLF001
        taken = []
        for job_id in idle[: max(0, len(self._directories) - self._max)]:
            name = f".gone-{secrets.token_hex(8)}"
            self._directories.pop(job_id).path.rename(self._root / name)
            taken.append(name)
        return taken


def _make_base(base: Path) -> None:
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


def _remove_dead(base: Path) -> None:
    """Remove the directories of processes that have ended. Process ids mean nothing across containers, locks do."""
    for left in base.iterdir():
        if _PROCESS.fullmatch(left.name) is not None and left.is_dir() and not left.is_symlink():
            with contextlib.suppress(BlockingIOError):
                descriptor = _lock(left / _LOCK, wait=False)
                try:
                    _remove_in(base, left.name)
                finally:
                    os.close(descriptor)


def _remove_in(directory: Path, name: str) -> None:
    with nofollow.opened(directory, nofollow.DIRECTORY_FLAGS) as parent:
        trees.remove(parent, name)
