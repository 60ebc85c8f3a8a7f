"""From what was seen of a command to why it ended, in words."""

from __future__ import annotations

import signal
from typing import Final

from dualtrack.domain.limits import KIB, MIB, SandboxLimits
from dualtrack.objects.nofollow import MAX_DEPTH
from dualtrack.sandbox.port import Ended, Outcome
from dualtrack.sandbox.pump import FLOOD_FACTOR, Pumped

_SIGNAL_BASE: Final = 128
_SIGNALS: Final = frozenset(int(number) for number in signal.Signals)


def outcome_of(pumped: Pumped, exit_code: int | None, limits: SandboxLimits, *, out_of_memory: bool) -> Outcome:
    """The outcome.

    An exit status of 128 + n is taken as signal n, as every shell reports it: a command that exits with such a status by itself can't be
    told apart. `exit_code` is None only for a command that was stopped or ran out of memory.
    """
    number: int | None = None
    if pumped.stopped is not None:
        ended = pumped.stopped
    elif out_of_memory:
        ended = Ended.MEMORY
    elif exit_code is not None and exit_code - _SIGNAL_BASE in _SIGNALS:
        number = exit_code - _SIGNAL_BASE
        ended = Ended.CPU_TIME if number == signal.SIGXCPU else Ended.SIGNALLED
    else:
        ended = Ended.EXITED
    return Outcome(
        ended=ended,
        exit_code=exit_code if ended is Ended.EXITED else None,
        signal=number,
        stdout=pumped.stdout.kept,
        stderr=pumped.stderr.kept,
        stdout_dropped=pumped.stdout.dropped,
        stderr_dropped=pumped.stderr.dropped,
        wall_s=pumped.wall_s,
        note=_note(ended, number, limits),
    )


def _note(ended: Ended, number: int | None, limits: SandboxLimits) -> str:
    notes = {
        Ended.WALL_TIME: f"wall time limit {limits.wall_time_s:g} s",
        Ended.CPU_TIME: f"CPU time limit {limits.cpu_time_s} s",
        Ended.MEMORY: f"memory limit {size_text(limits.memory_bytes)}",
        Ended.OUTPUT: f"output limit, {FLOOD_FACTOR} x {size_text(limits.output_bytes)}",
        Ended.DISK: f"workspace limit {size_text(limits.disk_bytes)}, {limits.disk_files} files or {MAX_DEPTH} directories deep",
        Ended.CANCELLED: "cancelled",
    }
    if ended in notes:
        return f"killed: {notes[ended]}"
    if number == signal.SIGXFSZ:
        return f"killed: file size limit {size_text(limits.file_bytes)}"
    return f"killed: signal {number} ({signal.Signals(number).name})" if number is not None else ""


def size_text(size: int) -> str:
    """A size for reading: `512 B`, `4 KiB`, `1.5 MiB`."""
    if size < KIB:
        return f"{size} B"
    return f"{size / KIB:.4g} KiB" if size < MIB else f"{size / MIB:.5g} MiB"
