"""Names of control groups that tell whose they are, so that those of processes killed before they could tidy up can be removed.

A process id alone is not enough: ids are used again, and containers that share a group hierarchy each count their own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LOG: Final = logging.getLogger(__name__)
_NAME: Final = re.compile(r"dualtrack-([0-9]+)-([0-9]+)-([0-9]+)-[0-9a-f]{12}")
_PROC: Final = Path("/proc")
_START_FIELD: Final = 19  # of /proc/<pid>/stat after the program's name: proc(5) calls it number 22


@dataclass(frozen=True, slots=True)
class _Process:
    namespace: int
    """Inode of the pid namespace that `pid` counts in."""
    pid: int
    started: int
    """Clock ticks after the machine's start."""


def group_name() -> str:
    """A new name for a group of this process. Raises OSError where there is no /proc."""
    own = _Process(_namespace(), os.getpid(), _started(os.getpid()))
    return f"dualtrack-{own.namespace}-{own.pid}-{own.started}-{uuid.uuid4().hex[:12]}"


def remove_leftovers(parent: Path) -> None:
    """Remove the empty groups below `parent` whose process has ended. Of processes that can't be seen from here, none is touched."""
    removed = 0
    with contextlib.suppress(OSError):
        namespace = _namespace()
        for group in parent.glob("dualtrack-*"):
            match = _NAME.fullmatch(group.name)
            if match is None:
                continue
            owner = _Process(*(int(number) for number in match.groups()))
            if owner.namespace == namespace and not _lives(owner):
                with contextlib.suppress(OSError):  # it has processes, or another worker was faster
                    group.rmdir()
                    removed += 1
    if removed:
        _LOG.info("Removed the control groups of workers that were killed", extra={"parent": str(parent), "groups": removed})


def _namespace() -> int:
    return (_PROC / "self/ns/pid").stat().st_ino


def _started(pid: int) -> int:
    fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    return int(fields[_START_FIELD])


def _lives(process: _Process) -> bool:
    """Whether it still exists; yes where that can't be told."""
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        pass
    try:
        return _started(process.pid) == process.started
    except OSError:  # /proc may be mounted so that others' processes are hidden
        return True
