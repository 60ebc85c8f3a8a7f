"""This process's own directory below a base, made at its first use and removed at the process's exit; shared by all who need one."""

from __future__ import annotations

import atexit
import contextlib
from functools import cache
from pathlib import Path

from dualtrack.objects.process_dir import ProcessDirectory


@cache
def own_directory(base: Path) -> ProcessDirectory:
    """The one of this process. Raises OSError as `ProcessDirectory`."""
    own = ProcessDirectory(base)
    atexit.register(_close, own)
    return own


def _close(own: ProcessDirectory) -> None:
    with contextlib.suppress(FileNotFoundError):  # somebody has removed all of the base
        own.close()
