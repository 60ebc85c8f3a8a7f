"""The control groups of one sandbox: its limits on memory and processes, the kernel's counters, and the end of all in them."""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path
from typing import Final, Self

from dualtrack.sandbox.cgroups import CgroupSupport, Controller
from dualtrack.sandbox.group_counters import read_counters, read_value
from dualtrack.sandbox.group_names import group_name, kill_members
from dualtrack.sandbox.rung import Counters

_log = logging.getLogger(__name__)

_REMOVAL_S: Final = 2.0


class SandboxGroup:
    """Made with its limits, empty; some 0.2 ms. A context manager that removes it at its end.

    Raises:
        OSError: when a group can't be made or set.
    """

    def __init__(self, support: CgroupSupport, memory_bytes: int, processes: int, *, with_kill: bool = False) -> None:
        """Takes the limits.

        Args:
            support: what there is.
            memory_bytes: of all processes in it, page cache of their files included.
            processes: processes and threads at once.
            with_kill: make it so that `kill` works at once, where the kernel has that, even if it takes one more group.
        """
        self._paths: list[Path] = []
        self._name = group_name() if support.parents() else ""
        self._last = Counters()
        try:
            self._memory = self._make(support.memory)
            self._pids = self._make(support.pids)
            self._cpu = self._make(support.cpu)
            self._kill = self._make(support.kill if with_kill or support.kill == support.memory else None)
            if self._memory is not None and support.memory is not None:
                _limit_memory(self._memory, support.memory.version, memory_bytes)
            if self._pids is not None:
                (self._pids / "pids.max").write_text(str(processes))
        except OSError:
            self.close()
            raise

    def _make(self, controller: Controller | None) -> Path | None:
        if controller is None:
            return None
        path = controller.parent / self._name
        if path not in self._paths:  # on v2 all controllers share one group
            path.mkdir()
            self._paths.append(path)
        return path

    def add(self, pid: int) -> None:
        """Move a process (before it starts its first child) into the groups. Raises OSError."""
        for path in self._paths:
            (path / "cgroup.procs").write_text(str(pid))

    def counters(self) -> Counters:
        """What the kernel has counted; the last known after `close`."""
        if self._paths:
            self._last = read_counters(self._memory, self._pids, self._cpu)
        return self._last

    @property
    def holds(self) -> bool:
        """Whether there is any group, so that `kill` reaches what was added."""
        return bool(self._paths)

    def await_empty(self, patience_s: float) -> bool:
        """Whether no process is left in it by then."""
        deadline = time.monotonic() + patience_s
        while any(read_value(path, "cgroup.procs") for path in self._paths):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    def kill(self) -> None:
        """End all processes in it: at once where the kernel has `cgroup.kill`, else one by one, until none is left or for 2 s."""
        if self._kill is not None:
            with contextlib.suppress(OSError):
                (self._kill / "cgroup.kill").write_text("1")
                return
        path = self._pids or self._memory or self._cpu  # all have the same members; the first can refuse new ones
        if path is not None:
            kill_members(path, _REMOVAL_S)

    def close(self) -> None:
        """Remove the groups; their processes must be gone (the kernel may need a moment to notice)."""
        self.counters()
        deadline = time.monotonic() + _REMOVAL_S
        while self._paths:
            path = self._paths[-1]
            try:
                path.rmdir()
            except FileNotFoundError:
                pass
            except OSError as error:
                if time.monotonic() < deadline:
                    time.sleep(0.001)
                    continue
                _log.warning("A control group could not be removed", extra={"group": str(path), "error": str(error)})
            self._paths.pop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _limit_memory(group: Path, version: int, memory_bytes: int) -> None:
    main, swap = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes") if version == 1 else ("memory.max", "memory.swap.max")
    (group / main).write_text(str(memory_bytes))
    with contextlib.suppress(OSError):  # absent where the kernel does not account for swap
        (group / swap).write_text(str(memory_bytes) if version == 1 else "0")
