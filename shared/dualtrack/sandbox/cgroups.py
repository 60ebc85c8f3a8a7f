"""Which control groups this process may create, on cgroup v1, v2, or both at once; and detecting that by doing it.

Where it may create none, resource limits take their place (set by the in-sandbox agent) and nothing is counted.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from dualtrack.sandbox.group_names import group_name

_MOUNTS: Final = Path("/proc/self/mountinfo")
_PROC: Final = Path("/proc")
_V2: Final = ""
_V1_NAMES: Final = frozenset({"memory", "pids", "cpuacct"})


@dataclass(frozen=True, slots=True)
class Controller:
    """Where groups of one controller are created: `parent` is an existing, writable group."""

    version: int
    parent: Path


@dataclass(frozen=True, slots=True)
class CgroupSupport:
    """What this process may limit and count by groups; None: nothing of that kind."""

    memory: Controller | None = None
    pids: Controller | None = None
    cpu: Controller | None = None
    """Counts CPU time, limits nothing."""
    kill: Controller | None = None
    """Ends all processes of a group at once (`cgroup.kill`, version 2 since Linux 5.14)."""

    def parents(self) -> set[Path]:
        """Every group that ours are created in."""
        found: set[Path] = set()
        for field in fields(self):
            controller = getattr(self, field.name)
            if controller is not None:
                found.add(controller.parent)
        return found

    def __str__(self) -> str:
        named = (("memory", self.memory), ("pids", self.pids), ("cpu", self.cpu))
        return ", ".join(f"{name} v{found.version}" for name, found in named if found) or "none (resource limits instead)"


def detect() -> CgroupSupport:
    """Find out by creating and removing groups."""
    mounts = _mounts()
    own = _own_groups()
    memory = _find("memory", mounts, own)
    # On version 2 every group counts CPU time and can be killed, whichever controllers it has: the one there is already will do.
    plain = memory if memory is not None and memory.version == 2 else _plain(mounts, own)  # noqa: PLR2004 - the version's name
    kill = plain if plain is not None and _can_kill(plain.parent) else None
    cpu = _find("cpuacct", mounts, own, v1_only=True) or plain
    return CgroupSupport(memory=memory, pids=_find("pids", mounts, own), cpu=cpu, kill=kill)


def _mounts() -> dict[str, tuple[int, Path, str]]:
    """Controller (`""` for v2) to its version, mount point and the group that is mounted there."""
    found: dict[str, tuple[int, Path, str]] = {}
    with contextlib.suppress(OSError):
        for line in _MOUNTS.read_text().splitlines():
            left, _, right = line.partition(" - ")
            root, point = left.split()[3:5]
            kind, _, options = right.split(" ", 2)
            if kind == "cgroup2":
                found[_V2] = (2, Path(point), root)
            elif kind == "cgroup":
                found.update({name: (1, Path(point), root) for name in options.split(",") if name in _V1_NAMES})
    return found


def groups_of(pid: int) -> dict[str, Path]:
    """Where the groups of a process are: by controller (`memory`, `pids`, `cpuacct`; `""` for version 2, which has all in one)."""
    mounts = _mounts()
    found = {}
    for name, group in _own_groups(str(pid)).items():
        if name in mounts:
            _, point, root = mounts[name]
            found[name] = point / (group[len(root) :] if root != "/" and group.startswith(root) else group).lstrip("/")
    return found


def _own_groups(process: str = "self") -> dict[str, str]:
    """Controller (`""` for v2) to the group a process is in."""
    groups: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in (_PROC / process / "cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            groups.update(dict.fromkeys(controllers.split(","), group))
    return groups


def _find(name: str, mounts: dict[str, tuple[int, Path, str]], own: dict[str, str], *, v1_only: bool = False) -> Controller | None:
    for key in (name,) if v1_only else (name, _V2):
        for version, parent in _candidates(key, mounts, own):
            if (version == 1 or _passes_on(parent, name)) and _may_create(parent):
                return Controller(version, parent)
    return None


def _plain(mounts: dict[str, tuple[int, Path, str]], own: dict[str, str]) -> Controller | None:
    """A version 2 group that others can be made in, with whatever controllers."""
    for version, parent in _candidates(_V2, mounts, own):
        if _may_create(parent):
            return Controller(version, parent)
    return None


def _candidates(key: str, mounts: dict[str, tuple[int, Path, str]], own: dict[str, str]) -> list[tuple[int, Path]]:
    if key not in mounts or key not in own:
        return []
    version, point, root = mounts[key]
    group = own[key]
    relative = group[len(root) :] if root != "/" and group.startswith(root) else group
    here = point / relative.lstrip("/")
    # On v2 a group with processes of its own can't pass controllers on: then a sibling is made, where the parent allows it.
    return [(version, parent) for parent in ([here] if version == 1 or here == point else [here, here.parent])]


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


def _can_kill(parent: Path) -> bool:
    """Whether groups have `cgroup.kill`: the root of the hierarchy has none, so a group must be made to see."""
    probe = parent / group_name()
    try:
        probe.mkdir()
    except OSError:
        return False
    try:
        return (probe / "cgroup.kill").exists()
    finally:
        with contextlib.suppress(OSError):
            probe.rmdir()
