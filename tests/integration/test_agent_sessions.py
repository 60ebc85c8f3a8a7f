"""The in-sandbox agent as a process: what it holds, whatever is done to it. Without any isolation around it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualtrack.domain.limits import KIB, MIB, SandboxLimits
from dualtrack.sandbox.port import Command, Ended
from dualtrack.sandbox.rung import LaunchSpec
from dualtrack.sandbox.session import AgentSession
from dualtrack.sandbox.sessions import Channel, PythonCell
from dualtrack.testing.bare_rung import BareLaunched, BareRung
from dualtrack.testing.waiting import PATIENCE_S, comes_true

LIMITS = SandboxLimits(wall_time_s=60, processes=4000)


class Started:
    """A session, and what /proc says of its agent."""

    def __init__(self, rung: BareRung, workspace: Path) -> None:
        spec = LaunchSpec(workspace, LIMITS)
        self.launched: BareLaunched = rung.launch(spec)
        self.session = AgentSession(self.launched, spec, "bare")
        self.session.wait_ready(PATIENCE_S)

    def run(self, script: str) -> bytes:
        outcome = self.session.run(Command(("sh", "-c", script)), LIMITS, threading.Event())
        assert outcome.ended is Ended.EXITED
        return outcome.stdout

    def status(self, name: str) -> int:
        lines = Path(f"/proc/{self.launched.agent_pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.launched.agent_pid}/fd").iterdir()))


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    with BareRung() as rung:
        started = Started(rung, tmp_path)
        try:
            yield started
        finally:
            started.session.close()


def test_a_flood_and_a_slow_reader_do_not_grow_it(started: Started) -> None:
    started.run("true")
    before = started.status("VmHWM")
    stop = time.monotonic() + 1

    def slow(_: Channel, data: bytes) -> None:
        if time.monotonic() < stop:
            time.sleep(0.02)

    limits = LIMITS.model_copy(update={"output_bytes": MIB})
    outcome = started.session.run(Command(("sh", "-c", "head -c 30000000 /dev/zero")), limits, threading.Event(), slow)
    assert len(outcome.stdout) + outcome.stdout_dropped == 30_000_000
    assert started.status("VmHWM") - before < 4 * KIB  # in KiB


def test_input_that_nobody_reads_does_not_grow_it(started: Started) -> None:
    started.run("true")
    before = started.status("VmHWM")
    outcome = started.session.run(Command(("sleep", "0.5"), stdin=b"x" * 30_000_000), LIMITS, threading.Event())
    assert (outcome.ended, outcome.exit_code) == (Ended.EXITED, 0)
    assert started.status("VmHWM") - before < 4 * KIB


def test_what_goes_on_in_the_background_does_not_exhaust_it(started: Started) -> None:
    for _ in range(150):
        assert started.run("sleep 300 & echo on") == b"on\n"
    assert started.descriptors() < 300
    assert started.session.python(PythonCell("print('on')"), LIMITS, threading.Event()).stdout == b"on\n"


def test_it_holds_nothing_of_what_has_ended(started: Started) -> None:
    def use() -> None:
        started.run("echo out; echo err >&2")
        started.session.python(PythonCell("print(1)"), LIMITS, threading.Event())
        started.session.python(PythonCell("import sys; sys.exit()", persistent=True), LIMITS, threading.Event())

    use()
    started.session.ping()
    before = started.descriptors()
    for _ in range(10):
        use()
    started.session.ping()
    assert comes_true(lambda: started.descriptors() <= before + 8)  # an interpreter that is just being forked
