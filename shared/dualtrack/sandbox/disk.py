"""How much a workspace and the temporary directory beside it hold while a command runs, nameless files included."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final

from dualtrack.domain.limits import SandboxLimits
from dualtrack.objects.nofollow import DIRECTORY_FLAGS, opened, walk
from dualtrack.sandbox.hidden import HIDDEN_FILES
from dualtrack.sandbox.port import Ended

_PAUSE_S: Final = 1.0
_BLOCK: Final = 512  # unit of st_blocks, whatever the file system's


class DiskWatch:
    """Looks about once a second (less often where looking takes long); between two looks a command can write beyond its limit."""

    def __init__(self, workspace: Path, limits: SandboxLimits, *, scratch: Path | None = None) -> None:
        """`scratch`: a further directory, which counts as if it were in the workspace."""
        self._directories = (workspace,) if scratch is None else (workspace, scratch)
        self._limits = limits
        self._next = time.monotonic() + _PAUSE_S

    @property
    def due(self) -> bool:
        """Whether `look` would look now."""
        return time.monotonic() >= self._next

    def look(self) -> Ended | None:
        """The limit that the workspace has grown beyond: of its size, the number of its files, or its depth."""
        if not self.due:
            return None
        before = time.thread_time()  # not the clock: where the machine is busy, looking is slow and still has to be done
        exceeded = self._exceeded()
        self._next = time.monotonic() + max(_PAUSE_S, 20 * (time.thread_time() - before))
        return exceeded

    def _exceeded(self) -> Ended | None:
        files = size = 0
        for directory in self._directories:
            # The command is at work in it: it may put a link where a directory was.
            with contextlib.suppress(OSError), opened(directory, DIRECTORY_FLAGS, mend=False) as top:
                size += HIDDEN_FILES.size(directory, os.fstat(top))
                if size > self._limits.disk_bytes:
                    return Ended.DISK
                for seen in walk(top, changing=True):
                    files += 1
                    size += seen.status.st_blocks * _BLOCK
                    # What is nested deeper can't be counted, and is in no snapshot: nobody gets to fill the disk there.
                    if seen.too_deep:
                        return Ended.DISK_DEPTH
                    if size > self._limits.disk_bytes:
                        return Ended.DISK
                    if files > self._limits.disk_files:
                        return Ended.DISK_FILES
        return None
