"""Control groups around one command: memory (with a counter of out-of-memory kills) and number of processes, on cgroup v1 or v2,
as far as this process may create groups at all. Where it may not, resource limits take their place (see `rlimits`).
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from dualtrack.sandbox.group_names import group_name, remove_leftovers

_log = logging.getLogger(__name__)

_MOUNTS: Final = Path("/proc/self/mountinfo")
_OWN: Final = Path("/proc/self/cgroup")
_REMOVAL_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Controller:
    """Where groups of one controller are created: `parent` is an existing, writable group."""

    version: int
    parent: Path


@dataclass(frozen=True, slots=True)
class CgroupSupport:
    """What this process may limit by groups; None: nothing of that kind."""

    memory: Controller | None = None
    pids: Controller | None = None

    def __str__(self) -> str:
        parts = [f"{name} v{found.version}" for name, found in (("memory", self.memory), ("pids", self.pids)) if found]
        return ", ".join(parts) or "none (resource limits instead)"


def detect() -> CgroupSupport:
    """Find out by creating and removing a group. Groups that killed processes have left there are removed."""
    mounts = _mounts()
    own = _own_groups()
    support = CgroupSupport(memory=_find("memory", mounts, own), pids=_find("pids", mounts, own))
    for parent in {controller.parent for controller in (support.memory, support.pids) if controller is not None}:
        remove_leftovers(parent)
    return support


def _mounts() -> dict[str, tuple[int, Path, str]]:
    """Controller (`""` for v2) to its version, mount point and the group that is mounted there."""
    found: dict[str, tuple[int, Path, str]] = {}
    with contextlib.suppress(OSError):
        for line in _MOUNTS.read_text().splitlines():
            left, _, right = line.partition(" - ")
            root, point = left.split()[3:5]
            kind, _, options = right.split(" ", 2)
            if kind == "cgroup2":
                found[""] = (2, Path(point), root)
            elif kind == "cgroup":
                found.update({name: (1, Path(point), root) for name in options.split(",") if name in {"memory", "pids"}})
    return found


def _own_groups() -> dict[str, str]:
    """Controller (`""` for v2) to the group this process is in."""
    groups: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in _OWN.read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            groups.update(dict.fromkeys(controllers.split(","), group))
    return groups


def _find(name: str, mounts: dict[str, tuple[int, Path, str]], own: dict[str, str]) -> Controller | None:
    for key in (name, ""):
        if key not in mounts or key not in own:
            continue
        version, point, root = mounts[key]
        group = own[key]
        relative = group[len(root) :] if root != "/" and group.startswith(root) else group
        here = point / relative.lstrip("/")
        # On v2 a group with processes of its own can't pass controllers on: then a sibling is made, where the parent allows it.
        candidates = [here] if version == 1 or here == point else [here, here.parent]
        for parent in candidates:
            if (version == 1 or _passes_on(parent, name)) and _may_create(parent):
                return Controller(version, parent)
    return None


def _passes_on(group: Path, name: str) -> bool:
    control = group / "cgroup.subtree_control"
    try:
        if name in control.read_text().split():
            return True
        control.write_text(f"+{name}")
    except OSError:
        return False
    return True


def _may_create(parent: Path) -> bool:
    try:
        probe = parent / group_name()
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


class CommandGroup:
    """The groups of one command; use as a context manager, which removes them.

    Raises:
        OSError: when a group can't be made or set.
    """

    def __init__(self, support: CgroupSupport, memory_bytes: int, processes: int) -> None:
        self._name = group_name() if support.memory or support.pids else ""
        self._memory = self._make(support.memory)
        try:
            self._pids = self._make(support.pids)
            if self._memory is not None and support.memory is not None:
                self._limit_memory(self._memory, support.memory.version, memory_bytes)
            if self._pids is not None:
                (self._pids / "pids.max").write_text(str(processes))
        except OSError:
            self.close()
            raise

    def _make(self, controller: Controller | None) -> Path | None:
        if controller is None:
            return None
        path = controller.parent / self._name
        path.mkdir(exist_ok=True)  # on v2 both controllers share one group
        return path

    @staticmethod
    def _limit_memory(group: Path, version: int, memory_bytes: int) -> None:
        main, swap = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes") if version == 1 else ("memory.max", "memory.swap.max")
        (group / main).write_text(str(memory_bytes))
        with contextlib.suppress(OSError):  # absent where the kernel does not account for swap
            (group / swap).write_text(str(memory_bytes) if version == 1 else "0")

    def add(self, pid: int) -> None:
        """Move a process (before it starts its first child) into the groups."""
        for group in {self._memory, self._pids} - {None}:
            if group is not None:
                (group / "cgroup.procs").write_text(str(pid))

    def out_of_memory(self) -> bool:
        """Whether the kernel killed a process of the group for memory."""
        if self._memory is None:
            return False
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError):
                for line in (self._memory / name).read_text().splitlines():
                    key, _, value = line.partition(" ")
                    if key == "oom_kill":
                        return int(value) > 0
        return False

    def close(self) -> None:
        """Remove the groups; their processes must be gone (the kernel may need a moment to notice)."""
        deadline = time.monotonic() + _REMOVAL_S
        for group in (self._memory, getattr(self, "_pids", None)):
            while group is not None and group.exists():
                try:
                    group.rmdir()
                except OSError as error:
                    if time.monotonic() > deadline:
                        _log.warning("A control group could not be removed", extra={"group": str(group), "error": str(error)})
                        break
                    time.sleep(0.002)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
