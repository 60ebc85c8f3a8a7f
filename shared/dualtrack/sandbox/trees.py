"""Moving what a directory holds into another one, by renaming its entries."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dualtrack.domain.errors import SandboxFailed
from dualtrack.objects.nofollow import DIRECTORY_FLAGS, change_mode, opened


def move_entries(source: Path, target: Path) -> None:
    """Move everything in `source` into `target`, on the same file system; some µs an entry at the top, whatever lies below.

    Nothing may be writing to `source`. No link is followed. What is in `target` under the same name is replaced where it is a file.

    Raises:
        SandboxFailed: an entry can't be moved; those before it are.
    """
    try:
        with opened(source, DIRECTORY_FLAGS) as old, opened(target, DIRECTORY_FLAGS) as new:
            for name in os.listdir(old):  # noqa: PTH208 - of a descriptor
                try:
                    os.rename(name, name, src_dir_fd=old, dst_dir_fd=new)
                except PermissionError:
                    _move_closed(name, old, new)
    except OSError as error:
        raise SandboxFailed(f"What is in {source} can't be moved to {target}: {error}.") from error


def _move_closed(name: str, old: int, new: int) -> None:
    """Move a directory that its owner made read-only: a directory changes when it moves, since it names the one above it."""
    mode = os.stat(name, dir_fd=old, follow_symlinks=False).st_mode
    if not stat.S_ISDIR(mode):
        raise PermissionError(f"{name!r} may not be moved")
    change_mode(name, stat.S_IMODE(mode) | stat.S_IRWXU, old)
    try:
        os.rename(name, name, src_dir_fd=old, dst_dir_fd=new)
    except OSError:
        change_mode(name, stat.S_IMODE(mode), old)
        raise
    change_mode(name, stat.S_IMODE(mode), new)
