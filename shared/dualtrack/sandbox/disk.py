"""How much a workspace holds while a command runs in it."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final

from dualtrack.domain.limits import SandboxLimits
from dualtrack.sandbox.port import Ended

_PAUSE_S: Final = 1.0
_BLOCK: Final = 512  # unit of st_blocks, whatever the file system's


class DiskWatch:
    """Looks about once a second (less often where looking takes long); between two looks a command can write beyond its limit."""

    def __init__(self, workspace: Path, limits: SandboxLimits) -> None:
        self._workspace = workspace
        self._limits = limits
        self._next = time.monotonic() + _PAUSE_S

    def look(self) -> Ended | None:
        """`Ended.DISK` when the workspace has grown beyond its limits."""
        started = time.monotonic()
        if started < self._next:
            return None
        over = self._over()
        took = time.monotonic() - started
        self._next = started + took + max(_PAUSE_S, 20 * took)
        return Ended.DISK if over else None

    def _over(self) -> bool:
        size = files = 0
        pending = [os.fspath(self._workspace)]
        while pending:
            with contextlib.suppress(OSError), os.scandir(pending.pop()) as entries:  # vanished meanwhile, or nested beyond PATH_MAX
                for entry in entries:
                    files += 1
                    with contextlib.suppress(OSError):
                        size += entry.stat(follow_symlinks=False).st_blocks * _BLOCK
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(entry.path)
                    if size > self._limits.disk_bytes or files > self._limits.disk_files:
                        return True
        return False
