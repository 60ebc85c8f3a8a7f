"""The kernel's counters of control groups, of version 1 or 2."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dualtrack.sandbox.rung import Counters

_NANO: Final = 1e-9
_MICRO: Final = 1e-6


def read_counters(memory: Path | None, pids: Path | None, cpu: Path | None) -> Counters:
    """What the kernel has counted in these groups; None for what is not there."""
    return Counters(_cpu_s(cpu), _peak(memory), _out_of_memory(memory), _refused(pids))


def _cpu_s(group: Path | None) -> float | None:
    nanoseconds = _number(group, "cpuacct.usage")
    if nanoseconds is not None:
        return nanoseconds * _NANO
    microseconds = _entry(group, "cpu.stat", "usage_usec")
    return None if microseconds is None else microseconds * _MICRO


def _peak(group: Path | None) -> int | None:
    peak = _number(group, "memory.max_usage_in_bytes")
    return _number(group, "memory.peak") if peak is None else peak  # version 2 has it since Linux 5.19


def _out_of_memory(group: Path | None) -> int | None:
    killed = _entry(group, "memory.events", "oom_kill")
    return _entry(group, "memory.oom_control", "oom_kill") if killed is None else killed


def _refused(group: Path | None) -> int | None:
    return _entry(group, "pids.events", "max")


def _number(group: Path | None, name: str) -> int | None:
    text = read_value(group, name)
    return int(text) if text is not None else None


def _entry(group: Path | None, name: str, wanted: str) -> int | None:
    """A value of a file of `key value` lines."""
    for line in (read_value(group, name) or "").splitlines():
        key, _, value = line.partition(" ")
        if key == wanted:
            return int(value)
    return None


def read_value(group: Path | None, name: str) -> str | None:
    """A file of a group; None where there is none."""
    if group is None:
        return None
    try:
        return (group / name).read_text()
    except OSError:  # another version's, or a kernel that is older
        return None
