"""What an unprivileged user may reach, and making a workspace its own."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

from dualtrack.domain.errors import SandboxFailed
from dualtrack.objects.nofollow import DIRECTORY_FLAGS, Seen, change_mode, opened, walk


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
    """Make `uid` the owner of the workspace and of all in it that belongs to another. Symbolic links are given away themselves;
    a file with several names stays whose it is, since one of them may lie elsewhere.

    For a driver that runs as root and drops to `uid`; nothing may be writing to the workspace meanwhile. Costs some µs a file. What is
    nested deeper than `MAX_DEPTH` is left alone: only a command can have made it, so it belongs to the sandbox's user already.

    Raises:
        SandboxFailed: when it may not be changed, or `uid` can't enter the directories above it.
    """
    if not may_traverse(workspace.parent, uid):
        raise SandboxFailed(
            f"The sandbox's user {uid} can't enter {workspace.parent}: put workspaces (DUALTRACK_SANDBOX__WORKSPACES) where others may "
            "enter all parent directories."
        )
    try:
        with opened(workspace, DIRECTORY_FLAGS) as top:
            if os.fstat(top).st_uid != uid:
                os.fchown(top, uid, uid)
            for seen in walk(top):
                shared = stat.S_ISREG(seen.status.st_mode) and seen.status.st_nlink > 1  # with the host, for all that is known
                if seen.status.st_uid != uid and not shared:
                    os.chown(seen.name, uid, uid, dir_fd=seen.parent, follow_symlinks=False)
    except OSError as error:
        raise SandboxFailed(f"The workspace can't be given to the sandbox's user {uid}: {error}.") from error


def strip_setid(workspace: Path) -> None:
    """Take the setuid and setgid bits off everything in the workspace; nothing may be writing to it meanwhile.

    What is nested deeper than `MAX_DEPTH` is left alone: it is in no snapshot, and goes with the next restore.

    Raises:
        SandboxFailed: when that is not possible.
    """
    try:
        with opened(workspace, DIRECTORY_FLAGS) as top:
            _strip(os.fstat(top), lambda mode: os.fchmod(top, mode))
            for seen in walk(top):
                _strip(seen.status, partial(_change, seen))
    except OSError as error:
        raise SandboxFailed(f"The setuid bits of a file in the workspace can't be taken off: {error}.") from error


def _strip(status: os.stat_result, change: Callable[[int], None]) -> None:
    if not stat.S_ISLNK(status.st_mode) and status.st_mode & (stat.S_ISUID | stat.S_ISGID):
        change(stat.S_IMODE(status.st_mode) & ~(stat.S_ISUID | stat.S_ISGID))


def _change(seen: Seen, mode: int) -> None:
    change_mode(seen.name, mode, seen.parent)
