"""From what was seen of a command to why it ended, in words."""

from __future__ import annotations

import os
import signal
from typing import Final

from dualtrack.domain.limits import KIB, MIB, SandboxLimits
from dualtrack.objects.nofollow import MAX_DEPTH
from dualtrack.sandbox.execution import Execution
from dualtrack.sandbox.port import Ended, Outcome
from dualtrack.sandbox.rung import Counters
from dualtrack.sandbox.streams import FLOOD_FACTOR

_WAIT_STATUS: Final = 0xFFFF
_MICRO: Final = 1_000_000
_CPU_COUNTED: Final = 0.5  # of the limit: the kernel counts limit and usage by different clocks, far apart on a busy machine
_SIGNALS: Final = frozenset(int(number) for number in signal.Signals)


def outcome_of(execution: Execution, limits: SandboxLimits, before: Counters, after: Counters, *, lost: str = "") -> Outcome:
    """The outcome of a command in a session, from the wait status that its agent reported and what the kernel counted meanwhile.

    Args:
        execution: what was seen; its `stopped`, `report` or `refusal` is set, or `after` says that the sandbox was ended for a limit.
        limits: those it ran under.
        before: counters at the end of the command before it.
        after: counters now.
        lost: what to tell about lost state of Python.
    """
    number, exit_code, background = None, None, 0
    ended = execution.stopped
    killed = grew(before.out_of_memory, after.out_of_memory)
    refused = grew(before.forks_refused, after.forks_refused)
    reached = []
    if execution.report is not None and ended is None:
        status = execution.report.number("status", 0, _WAIT_STATUS)
        background = execution.report.number("background")
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            cpu_s = (execution.report.number("user_us") + execution.report.number("system_us")) / _MICRO
            ended = Ended.SIGNALLED
            if number == signal.SIGKILL and killed:
                ended = Ended.MEMORY
            elif number in {signal.SIGXCPU, signal.SIGKILL} and cpu_s >= _CPU_COUNTED * limits.cpu_time_s:
                ended = Ended.CPU_TIME
        else:
            ended = Ended.EXITED
            exit_code = os.WEXITSTATUS(status)
    elif execution.refusal is not None and ended is None:
        ended = Ended.PROCESSES
    elif ended is None:
        ended = Ended.DISK if grew(before.disk_exceeded, after.disk_exceeded) else Ended.MEMORY
    if killed and ended is not Ended.MEMORY:
        reached.append(f"memory limit {size_text(limits.memory_bytes)}, for which a process was killed")
    if refused and ended is not Ended.PROCESSES:
        reached.append(f"process limit {limits.processes}")
    notes = [note_of(ended, number if ended is Ended.SIGNALLED else None, limits), *(f"reached: {limit}" for limit in reached), lost]
    return Outcome(
        ended=ended,
        exit_code=exit_code,
        signal=number,
        stdout=execution.stdout.kept,
        stderr=execution.stderr.kept,
        stdout_dropped=execution.stdout.dropped,
        stderr_dropped=execution.stderr.dropped,
        wall_s=execution.wall_s,
        note="; ".join(note for note in notes if note),
        background=background,
        reached=tuple(reached),
    )


def grew(before: int | None, after: int | None) -> bool:
    """Whether a counter has risen; one that was not known before had counted nothing."""
    return after is not None and after > (before or 0)


def note_of(ended: Ended, number: int | None, limits: SandboxLimits) -> str:
    """How it ended, for a person and the model, with the limit's figure or the signal; empty for an exit."""
    notes = {
        Ended.WALL_TIME: f"wall time limit {limits.wall_time_s:g} s",
        Ended.CPU_TIME: f"CPU time limit {limits.cpu_time_s} s",
        Ended.MEMORY: f"memory limit {size_text(limits.memory_bytes)}",
        Ended.PROCESSES: f"process limit {limits.processes}",
        Ended.OUTPUT: f"output limit, {FLOOD_FACTOR} x {size_text(limits.output_bytes)}",
        Ended.DISK: f"workspace limit {size_text(limits.disk_bytes)}",
        Ended.DISK_FILES: f"workspace limit {limits.disk_files} files",
        Ended.DISK_DEPTH: f"workspace limit {MAX_DEPTH} directories deep",
        Ended.CANCELLED: "cancelled",
    }
    if ended in notes:
        return f"{'not started' if ended is Ended.PROCESSES else 'killed'}: {notes[ended]}"
    if number == signal.SIGXFSZ:
        return f"killed: file size limit {size_text(limits.file_bytes)}"
    if number is None:
        return ""
    return f"killed: signal {number} ({signal.Signals(number).name})" if number in _SIGNALS else f"killed: signal {number}"


def size_text(size: int) -> str:
    """A size for reading: `512 B`, `4 KiB`, `1.5 MiB`."""
    if size < KIB:
        return f"{size} B"
    return f"{size / KIB:.4g} KiB" if size < MIB else f"{size / MIB:.5g} MiB"
