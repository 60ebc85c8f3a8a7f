"""What attempts have left on the host: looking for it, and removing it (after the control, nothing stops it from staying)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Final

_PLACES: Final = (Path("/tmp"), Path("/dev/shm"), Path("/var/tmp"))
_REMOVE: Final = 0


def processes_with(marker: str, *, within_s: float = 0.0) -> list[int]:
    """Numbers of processes with `marker` as a word of their command line that do not go away in time (killed ones may linger a moment)."""
    deadline = time.monotonic() + within_s
    while True:
        found = [pid for pid in _pids() if marker.encode() in _words(pid)]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


def segment_exists(key: int) -> bool:
    """Whether there is a System V memory segment of that key."""
    with contextlib.suppress(OSError):
        return any(line.split()[0] == str(key) for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:])
    return False


def abstract_socket_exists(marker: str) -> bool:
    """Whether an abstract socket has `marker` in its name, in this network namespace or in one of a process that lives."""
    return f"@dualtrack-{marker}" in Path("/proc/net/unix").read_text()


def temporary_files(marker: str) -> list[Path]:
    """Files with that marker in the host's temporary directories."""
    return [path for place in _PLACES if (path := place / f"dualtrack-{marker}").exists()]


def remove(marker: str) -> None:
    """End and remove all of that marker."""
    for pid in processes_with(marker):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for path in temporary_files(marker):
        path.unlink(missing_ok=True)
    libc = ctypes.CDLL(None)
    segment = libc.shmget(int(marker), 0, 0)
    if segment >= 0:
        libc.shmctl(segment, _REMOVE, None)


def processes_of_run(token: str) -> list[int]:
    """Processes with `token` in their environment."""
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            if token.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
    return found


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _words(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []
