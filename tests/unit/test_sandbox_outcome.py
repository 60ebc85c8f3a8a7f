"""Why a command ended, from the kernel's words alone."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from dualtrack.domain.limits import MIB, SandboxLimits
from dualtrack.sandbox.execution import Execution
from dualtrack.sandbox.inside.protocol import Fields, ProtocolError
from dualtrack.sandbox.outcome import outcome_of
from dualtrack.sandbox.port import Ended, Outcome
from dualtrack.sandbox.rung import Counters

LIMITS = SandboxLimits(memory_bytes=512 * MIB, processes=128, cpu_time_s=10)
NOTHING = Counters(cpu_s=1.0, out_of_memory=3, forks_refused=5)
MEMORY = Counters(cpu_s=2.0, out_of_memory=4, forks_refused=5)
FORKS = Counters(cpu_s=2.0, out_of_memory=3, forks_refused=6)


def outcome(
    status: int | None = None, after: Counters = NOTHING, *, cpu_s: float = 0.0, stopped: Ended | None = None, before: Counters = NOTHING
) -> Outcome:
    wire: Any = None
    execution = Execution(wire, 1, LIMITS, b"", None)
    execution.stopped = stopped
    if status is not None:
        report = {"status": status, "user_us": int(cpu_s * 1e6), "system_us": 0, "background": 2}
        execution.report = Fields(json.dumps(report).encode())
    return outcome_of(execution, LIMITS, before, after)


@pytest.mark.parametrize(
    ("found", "ended", "exit_code", "number", "note"),
    [
        (outcome(0), Ended.EXITED, 0, None, ""),
        (outcome(3 << 8), Ended.EXITED, 3, None, ""),
        (outcome(137 << 8), Ended.EXITED, 137, None, ""),
        (outcome(9), Ended.SIGNALLED, None, 9, "killed: signal 9 (SIGKILL)"),
        (outcome(11 | 0x80), Ended.SIGNALLED, None, 11, "killed: signal 11 (SIGSEGV)"),
        (outcome(64), Ended.SIGNALLED, None, 64, "killed: signal 64 (SIGRTMAX)"),
        (outcome(40), Ended.SIGNALLED, None, 40, "killed: signal 40"),
        (outcome(9, MEMORY), Ended.MEMORY, None, 9, "killed: memory limit 512 MiB"),
        (outcome(9, cpu_s=11), Ended.CPU_TIME, None, 9, "killed: CPU time limit 10 s"),
        (outcome(int(signal.SIGXCPU), cpu_s=9), Ended.CPU_TIME, None, 24, "killed: CPU time limit 10 s"),
        (outcome(int(signal.SIGXCPU), cpu_s=1), Ended.SIGNALLED, None, 24, "killed: signal 24 (SIGXCPU)"),
        (outcome(int(signal.SIGXFSZ)), Ended.SIGNALLED, None, 25, "killed: file size limit 256 MiB"),
        (outcome(after=MEMORY), Ended.MEMORY, None, None, "killed: memory limit 512 MiB"),
        (outcome(0, FORKS), Ended.EXITED, 0, None, "reached: process limit 128"),
        (outcome(0, MEMORY), Ended.EXITED, 0, None, "reached: memory limit 512 MiB, for which a process was killed"),
        (outcome(9, FORKS), Ended.SIGNALLED, None, 9, "killed: signal 9 (SIGKILL); reached: process limit 128"),
        (outcome(0, FORKS, before=Counters()), Ended.EXITED, 0, None, "reached: memory limit 512 MiB, for which"),
        (outcome(9, Counters()), Ended.SIGNALLED, None, 9, "killed: signal 9 (SIGKILL)"),
        (outcome(stopped=Ended.CANCELLED, after=MEMORY), Ended.CANCELLED, None, None, "killed: cancelled; reached: memory limit 512 MiB, "),
    ],
)
def test_why_it_ended(found: Outcome, ended: Ended, exit_code: int | None, number: int | None, note: str) -> None:
    assert (found.ended, found.exit_code, found.signal) == (ended, exit_code, number)
    assert found.note.startswith(note)
    assert bool(found.note) == bool(note)


@pytest.mark.parametrize("status", [-1, 1 << 16])
def test_a_status_that_is_none_is_a_broken_protocol(status: int) -> None:
    with pytest.raises(ProtocolError):
        outcome(status)
