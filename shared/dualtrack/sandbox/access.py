"""What an unprivileged user may reach, and making a workspace its own."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from dualtrack.domain.errors import SandboxFailed


def may_traverse(directory: Path, uid: int) -> bool:
    """Whether user `uid`, in no group but the one of its own number, may enter `directory` and all above it (by mode bits)."""
    path = directory.resolve()
    for part in (path, *path.parents):
        try:
            status = part.stat()
        except OSError:
            return False
        if status.st_uid == uid:
            needed = stat.S_IXUSR
        elif status.st_gid == uid:
            needed = stat.S_IXGRP
        else:
            needed = stat.S_IXOTH
        if not status.st_mode & needed:
            return False
    return True


def give_workspace(workspace: Path, uid: int) -> None:
    """Make `uid` the owner of the workspace and of all in it that belongs to another. Symlinks are not followed.

    For a driver that runs as root and drops to `uid`; nothing may be writing to the workspace meanwhile. Costs some µs a file.

    Raises:
        SandboxFailed: when it may not be changed, or `uid` can't enter the directories above it.
    """
    if not may_traverse(workspace.parent, uid):
        raise SandboxFailed(
            f"The sandbox's user {uid} can't enter {workspace.parent}: put workspaces (DUALTRACK_SANDBOX__WORKSPACES) where others may "
            "enter all parent directories."
        )
    try:
        for path, status in _walk(workspace):
            if status.st_uid != uid:
                os.chown(path, uid, uid, follow_symlinks=False)
    except OSError as error:
        raise SandboxFailed(f"The workspace can't be given to the sandbox's user {uid}: {error}.") from error


def strip_setid(workspace: Path) -> None:
    """Take the setuid and setgid bits off everything in the workspace; nothing may be writing to it meanwhile.

    Raises:
        SandboxFailed: when that is not possible.
    """
    try:
        for path, status in _walk(workspace):
            if not stat.S_ISLNK(status.st_mode) and status.st_mode & (stat.S_ISUID | stat.S_ISGID):
                Path(path).chmod(stat.S_IMODE(status.st_mode) & ~(stat.S_ISUID | stat.S_ISGID))
    except OSError as error:
        raise SandboxFailed(f"The setuid bits of a file in the workspace can't be taken off: {error}.") from error


def _walk(workspace: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The workspace and all in it, symlinks as themselves. What is nested beyond the system's longest path is left out: only a command can
    have made it, so it belongs to the sandbox's user already, and nobody can reach it by its path.
    """
    pending = [os.fspath(workspace)]
    yield pending[0], workspace.stat(follow_symlinks=False)
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    yield entry.path, entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
