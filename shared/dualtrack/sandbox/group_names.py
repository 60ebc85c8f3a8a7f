"""Names of control groups that tell whose they are, so that those of processes killed before they could tidy up can be removed.

A process id alone is not enough: ids are used again, and containers that share a group hierarchy each count their own.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"dualtrack-([0-9]+)-([0-9]+)-([0-9]+)-[0-9a-f]{12}")
_PROC: Final = Path("/proc")
_START_FIELD: Final = 19  # of /proc/<pid>/stat after the program's name: proc(5) calls it number 22
_REMOVAL_S: Final = 2.0


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


def remove_leftovers(parent: Path) -> list[str]:
    """Remove the groups below `parent` whose owner has ended, and end the processes in them; a line for each removed.

    Of owners that can't be seen from here, none is touched.
    """
    removed = []
    with contextlib.suppress(OSError):
        namespace = _namespace()
        for group in parent.glob("dualtrack-*"):
            match = _NAME.fullmatch(group.name)
            if match is None:
                continue
            owner = _Process(*(int(number) for number in match.groups()))
            if owner.namespace == namespace and not _lives(owner):
                killed = kill_members(group, _REMOVAL_S)
                with contextlib.suppress(OSError):  # a process could not be ended, or another executor was faster
                    group.rmdir()
                    removed.append(f"control group {group}" + (f", {killed} processes in it" if killed else ""))
    return removed


def kill_members(group: Path, patience_s: float) -> int:
    """End all processes in a group, until it is empty or for so many seconds; how many were seen."""
    killed: set[int] = set()
    for name, value in (("pids.max", "0"), ("cgroup.kill", "1")):  # no more forks, and all at once, where the kernel has them
        with contextlib.suppress(OSError), (group / name).open("r+") as file:  # never makes a file
            file.write(value)
    deadline = time.monotonic() + patience_s
    with contextlib.suppress(OSError):
        while members := (group / "cgroup.procs").read_text().split():
            for pid in map(int, members):
                if pid > 0:  # 0: of a pid namespace above ours
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
            if time.monotonic() > deadline:
                break
            time.sleep(0.001)
    return len(killed)


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
