"""What of sandboxes is on this machine: listed before and after, it has to be the same.

Only what belongs to the run is listed, since others work on the machine: the sandbox's user (one of its own for each run, where root starts
it), the run's directory, the executors it started.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

_GROUPS: Final = Path("/sys/fs/cgroup")
_QUEUES: Final = ("shm", "msg", "sem")
_UID_COLUMN: Final = {"shm": 7, "msg": 7, "sem": 4}
_KEPT: Final = (".", "lock", "templates")  # copies of programs, the lock of the directory, and built templates: kept on purpose


def inventory(folder: Path, uid: int, executors: Collection[int], descriptors_of: int) -> dict[str, list[str]]:
    """Kind to what there is of it.

    Args:
        folder: the workspaces of the run.
        uid: the user that its sandboxes run as.
        executors: process numbers of all executors that were started.
        descriptors_of: a process whose open descriptors are counted.
    """
    return {
        "processes": sorted(_processes(uid, str(folder))),
        "mounts": sorted(line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line),
        "control groups": sorted(_groups(executors)),
        "sockets": sorted(line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if str(folder) in line),
        "System V objects": sorted(_system_v(uid)),
        "temporary files": sorted(_owned(uid, Path("/tmp"), Path("/dev/shm"), Path("/var/tmp"), Path("/dev/mqueue"))),
        "directories": sorted(path.name for path in _listed(folder) if not path.name.startswith(_KEPT)),
        "descriptors": [f"{count} open" for count in [len(list(_listed(Path(f"/proc/{descriptors_of}/fd"))))]],
    }


def differences(before: dict[str, list[str]], after: dict[str, list[str]]) -> dict[str, list[str]]:
    """Kind to what was added (`+`) or is missing (`-`)."""
    found = {}
    for kind, listed in before.items():
        changes = [f"+ {item}" for item in after[kind] if item not in listed] + [f"- {item}" for item in listed if item not in after[kind]]
        if changes:
            found[kind] = changes
    return found


def _processes(uid: int, folder: str) -> Iterator[str]:
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid():
            with contextlib.suppress(OSError):  # ended meanwhile
                line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if (path.stat().st_uid == uid and os.geteuid() == 0) or folder in line:
                    yield f"{path.name} {line[:200]}"


def _groups(executors: Collection[int]) -> Iterator[str]:
    for top, names, _ in os.walk(_GROUPS):
        for name in names:
            parts = name.split("-")
            if parts[0] == "dualtrack" and any(str(pid) in parts for pid in executors):
                yield f"{top}/{name}"


def _system_v(uid: int) -> Iterator[str]:
    for kind in _QUEUES:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]:
                if line.split()[_UID_COLUMN[kind]] == str(uid):
                    yield f"{kind} {line.split()[1]}"


def _owned(uid: int, *places: Path) -> Iterator[str]:
    for place in places:
        for path in _listed(place):
            with contextlib.suppress(OSError):
                if path.lstat().st_uid == uid and os.geteuid() == 0:
                    yield str(path)


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
