"""gVisor's processes on this machine, found by their command lines: each names the directory of its sandbox (`--root=DIRECTORY`)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_PAUSE_S: Final = 0.002


def processes_below(directory: Path, runsc: Path) -> list[int]:
    """Process numbers of runsc, its kernels and file servers whose sandboxes lie below `directory`; takes milliseconds."""
    mark = f"--root={directory}/".encode()
    found = []
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                ours = any(argument.startswith(mark) for argument in (entry / "cmdline").read_bytes().split(b"\0"))
                if ours and (entry / "exe").samefile(runsc):
                    found.append(int(entry.name))
    return found


def end_processes_below(directory: Path, runsc: Path, patience_s: float) -> int:
    """End them, until none is left or for so many seconds; how many there were."""
    ended: set[int] = set()
    deadline = time.monotonic() + patience_s
    while found := processes_below(directory, runsc):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended.update(found)
        if time.monotonic() > deadline:
            break
        time.sleep(_PAUSE_S)
    return len(ended)
