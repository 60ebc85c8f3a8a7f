"""This process's own directory below a base, made at its first use and removed at the process's exit; shared by all who need one."""

from __future__ import annotations

import atexit
import contextlib
import os
from functools import cache
from pathlib import Path

from dualtrack.objects.process_dir import ProcessDirectory


def own_directory(base: Path) -> ProcessDirectory:
    """The one of this process; one that was forked from it gets another. Raises OSError as `ProcessDirectory`."""
    return _made(base, os.getpid())


@cache
def _made(base: Path, owner: int) -> ProcessDirectory:
    own = ProcessDirectory(base)
    atexit.register(_close, own, owner)
    return own


def _close(own: ProcessDirectory, owner: int) -> None:
    if os.getpid() != owner:  # forked from it, and not done with by `os._exit`
        return
    with contextlib.suppress(FileNotFoundError):  # somebody has removed all of the base
        own.close()
