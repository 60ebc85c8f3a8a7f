"""What an unprivileged user may reach, and making a workspace its own."""

from __future__ import annotations

import errno
import os
import stat
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
        _own(os.fspath(workspace), uid, workspace.stat(follow_symlinks=False))
        pending = [os.fspath(workspace)]
        while pending:
            try:
                with os.scandir(pending.pop()) as entries:
                    for entry in entries:
                        _own(entry.path, uid, entry.stat(follow_symlinks=False))
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(entry.path)
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:  # only a command can have nested so deep, so it is that user's already
                    raise
    except OSError as error:
        raise SandboxFailed(f"The workspace can't be given to the sandbox's user {uid}: {error}.") from error


def _own(path: str, uid: int, status: os.stat_result) -> None:
    if status.st_uid != uid:
        os.chown(path, uid, uid, follow_symlinks=False)
