"""An executor's directories on its own machine: one for each job it worked on lately, so that most calls find their workspace in place."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from dualtrack.domain.errors import InfrastructureError, SandboxUnavailable
from dualtrack.objects.process_dir import ProcessDirectory, remove_in
from dualtrack.settings import SandboxSettings

_LOG: Final = logging.getLogger(__name__)
LEASE_TIMEOUT_S: Final = 120.0
"""Longest wait for another call of the same job, which is told to stop within seconds when it has lost its claim."""


class WorkdirBusy(InfrastructureError):
    """Another call of the same job held its directory for too long."""

    code = "workdir_busy"


@dataclass(eq=False, slots=True)
class Workdir:
    """A job's directory, while it is leased."""

    path: Path
    owner: tuple[int, int] | None
    """Uid and gid that what is put into it must belong to; None where the executor is no root and everything is its own."""
    size: int = 0
    """Bytes that its files have together, as far as is known; whoever leases it says so."""
    _users: int = 0
    _exclusive: bool = False
    _restoring: threading.Lock = field(default_factory=threading.Lock)


class Workdirs:
    """The directories of one process, below `settings.workspaces`; a context manager that removes them at its end. Thread-safe.

    Of those that nobody uses, the least recently used are removed when there are more than `settings.hot_workspaces` or all together
    hold more than `settings.hot_bytes`.

    Processes share nothing: each has a directory of its own, whose locked file tells others that it is alive. What dead ones
    have left is removed at the next start of any.
    """

    def __init__(self, settings: SandboxSettings, *, timeout_s: float = LEASE_TIMEOUT_S) -> None:
        """Raises `SandboxUnavailable` where the directory can't be used by this user."""
        base = settings.workspaces.absolute()
        self._max = settings.hot_workspaces
        self._max_bytes = settings.hot_bytes
        self._timeout_s = timeout_s
        # Sandboxes run as an unprivileged user when we are root; that user has to reach its directory and nothing beside it.
        self._owner = (settings.uid, settings.uid) if os.geteuid() == 0 else None
        self._changed = threading.Condition()
        self._directories: OrderedDict[str, Workdir] = OrderedDict()
        try:
            self._directory = ProcessDirectory(base)
            self._directory.sweep()
        except OSError as error:
            raise SandboxUnavailable(
                f"The directory {base} for workspaces can't be used: {error}. Set DUALTRACK_SANDBOX__WORKSPACES to one of your own."
            ) from error
        self._root = self._directory.path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove all directories. No lease may be held."""
        self._directory.close()

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
                remove_in(self._root, name)
            except OSError:  # the call that ends here has done its work; what is left goes when this process does
                _LOG.exception("a directory that is not needed any more could not be removed")

    def _take_surplus(self) -> list[str]:
        """Put the least recently used idle directories out of the way, to be removed without the lock."""
        held = sum(directory.size for directory in self._directories.values())
        if len(self._directories) <= self._max and held <= self._max_bytes:
            return []
        taken = []
        for job_id in [job_id for job_id, directory in self._directories.items() if not directory._users]:  # noqa: SLF001
            if len(self._directories) <= self._max and held <= self._max_bytes:
                break
            held -= self._directories[job_id].size
            name = f".gone-{secrets.token_hex(8)}"
            self._directories.pop(job_id).path.rename(self._root / name)
            taken.append(name)
        return taken
