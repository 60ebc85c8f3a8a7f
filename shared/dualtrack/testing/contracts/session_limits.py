"""How every session keeps its limits and ends for certain, whatever isolates it."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from typing import ClassVar

import pytest

from dualtrack.domain.errors import SandboxFailed
from dualtrack.domain.limits import KIB, MIB
from dualtrack.sandbox.port import Ended
from dualtrack.sandbox.sessions import EndReason, Session, SessionRequest, Sessions
from dualtrack.testing.contracts.sandbox import host_processes
from dualtrack.testing.contracts.sessions import LIMITS, Asking, Run, python_runner, runner
from dualtrack.testing.waiting import PATIENCE_S


class SessionLimitsContract(Asking):
    """Limits, the certain end, and what a hostile command may try against the agent."""

    others: ClassVar[int] = 0
    """Processes by which the limit may be off, where it is one of the user for all sandboxes together."""

    @pytest.fixture
    def counts_memory(self) -> bool:
        """Whether the kernel's count of kills for memory is known."""
        return True

    @pytest.fixture
    def counts_processes(self) -> bool:
        """Whether the kernel's count of refused forks is known."""
        return True

    def test_wall_time_ends_the_session(self, fresh: Session) -> None:
        marker = str(10**6 + secrets.randbelow(10**6))
        outcome = runner(fresh)("sh", "-c", f"trap '' TERM INT HUP; setsid sleep {marker} & sleep {marker}", wall_time_s=1)
        assert (outcome.ended, outcome.exit_code, outcome.note) == (Ended.WALL_TIME, None, "killed: wall time limit 1 s")
        assert fresh.ended is EndReason.LIMIT
        assert not host_processes(marker)
        with pytest.raises(SandboxFailed, match="limit"):
            runner(fresh)("true")

    @pytest.mark.parametrize("kind", ["command", "fresh", "persistent"])
    def test_cancel(self, fresh: Session, kind: str) -> None:
        marker = str(10**6 + secrets.randbelow(10**6))
        cancel = threading.Event()
        timer = threading.Timer(0.7, cancel.set)
        timer.start()
        started = time.monotonic()
        if kind == "command":
            outcome = runner(fresh)("sleep", marker, cancel=cancel, wall_time_s=90)
        else:
            source = f"import subprocess\nsubprocess.run(['sleep', '{marker}'])"
            outcome = python_runner(fresh)(source, persistent=kind == "persistent", cancel=cancel, wall_time_s=90)
        took = time.monotonic() - started
        timer.join()
        assert (outcome.ended, outcome.note, fresh.ended) == (Ended.CANCELLED, "killed: cancelled", EndReason.CANCELLED)
        assert took < PATIENCE_S
        assert not host_processes(marker)

    def test_cpu_time_of_one_process(self, fresh: Session) -> None:
        outcome = runner(fresh)("sh", "-c", "while :; do :; done", cpu_time_s=1)
        assert (outcome.ended, outcome.exit_code, outcome.note) == (Ended.CPU_TIME, None, "killed: CPU time limit 1 s")
        assert fresh.ended is EndReason.LIMIT

    def test_memory(self, fresh: Session, counts_memory: bool) -> None:
        outcome = python_runner(fresh)("x = b'x' * (900 << 20); print(len(x))")
        assert outcome.stdout == b""
        if counts_memory:
            assert (outcome.ended, outcome.exit_code, outcome.note) == (Ended.MEMORY, None, "killed: memory limit 512 MiB")
        else:
            assert (outcome.ended, outcome.exit_code) == (Ended.EXITED, 1)
            assert b"MemoryError" in outcome.stderr

    def test_memory_of_a_child_is_told(self, fresh: Session, counts_memory: bool) -> None:
        if not counts_memory:
            pytest.skip("nothing counts it")
        outcome = runner(fresh)("sh", "-c", "python3 -c \"x = b'x' * (900 << 20)\"; echo on")
        assert (outcome.ended, outcome.exit_code, outcome.stdout) == (Ended.EXITED, 0, b"on\n")
        assert outcome.note.startswith("reached: memory limit 512 MiB")
        assert runner(fresh)("echo", "alive").note == ""

    def test_processes_are_limited_and_told(self, fresh: Session, counts_processes: bool) -> None:
        source = (
            "import os, time\n"
            "n = 0\n"
            "try:\n"
            "  while n < 300:\n"
            "    if os.fork() == 0: time.sleep(60); os._exit(0)\n"
            "    n += 1\n"
            "except BlockingIOError: pass\n"
            "print(n)"
        )
        outcome = runner(fresh)("python3", "-I", "-c", source)
        assert 40 <= int(outcome.stdout) <= LIMITS.processes + self.others
        if counts_processes:
            assert outcome.note == "reached: process limit 64"
            assert outcome.reached == ("process limit 64",)
        outcome = runner(fresh)("true")
        assert outcome.ended in {Ended.PROCESSES, Ended.EXITED}
        if outcome.ended is Ended.PROCESSES:
            assert outcome.note == "not started: process limit 64"
            assert fresh.ended is EndReason.LIMIT

    def test_file_size(self, run: Run, python: Run) -> None:
        outcome = run("head", "-c", "3000000", "/dev/zero", file_bytes=MIB)
        assert outcome.exit_code == 0  # it wrote to a pipe
        outcome = run("dd", "if=/dev/zero", "of=big", "bs=1000000", "count=3", file_bytes=MIB)
        assert (outcome.ended, outcome.note) == (Ended.SIGNALLED, "killed: file size limit 1 MiB")
        assert run("sh", "-c", "wc -c < big; rm big").stdout.strip() == b"1048576"
        assert b"File too large" in python("open('big', 'wb').write(b'x' * 3_000_000)", file_bytes=MIB).stderr
        run("rm", "-f", "big")

    def test_open_files(self, python: Run, run: Run) -> None:
        source = "files = [open('/dev/null') for _ in range(100)]"
        assert b"Too many open files" in python(source, open_files=50).stderr
        assert b"Too many open files" in run("python3", "-I", "-c", source, open_files=50).stderr

    def test_disk(self, fresh: Session) -> None:
        script = "i=0; while true; do i=$((i+1)); head -c 4000000 /dev/zero > f$i; sleep 0.05; done"
        outcome = runner(fresh)("sh", "-c", script, disk_bytes=20 * MIB, wall_time_s=120)
        assert (outcome.ended, outcome.note) == (Ended.DISK, "killed: workspace limit 20 MiB")
        assert fresh.ended is EndReason.LIMIT

    def test_disk_between_two_commands(self, fresh: Session) -> None:
        script = "(i=0; while true; do i=$((i+1)); head -c 1000000 /dev/zero > f$i; sleep 0.05; done) > /dev/null 2>&1 &"
        assert runner(fresh)("sh", "-c", script, disk_bytes=20 * MIB).exit_code == 0
        deadline = time.monotonic() + PATIENCE_S
        while not (limit := fresh.overrun()) and time.monotonic() < deadline:
            assert fresh.ended is None
            time.sleep(0.2)
        assert limit == "killed: workspace limit 20 MiB"

    def test_flood(self, fresh: Session) -> None:
        outcome = runner(fresh)("sh", "-c", "yes; echo never", output_bytes=4 * KIB)
        assert outcome.ended is Ended.OUTPUT
        assert len(outcome.stdout) == 4 * KIB
        assert fresh.ended is EndReason.LIMIT

    def test_closed_by_another_thread_while_it_runs(self, sessions: Sessions) -> None:
        session = sessions.claim(SessionRequest(LIMITS))
        timer = threading.Timer(0.5, session.close, (EndReason.SHUTDOWN,))
        timer.start()
        started = time.monotonic()
        with pytest.raises(SandboxFailed):
            runner(session)("sleep", "100", wall_time_s=90)
        assert time.monotonic() - started < PATIENCE_S
        timer.join()
        assert session.ended is EndReason.SHUTDOWN

    @pytest.mark.parametrize("attack", ["kill -KILL $PPID", "kill -STOP $PPID", "kill -KILL -1", "kill -STOP -1; sleep 100"])
    def test_the_agent_under_attack(self, sessions: Sessions, attack: str) -> None:
        """Where it can be reached at all. It may cost the session, in time, and nothing else."""
        if "-1" in attack and not self.own_processes:
            pytest.skip("there is no pid namespace: it would reach this test as well")
        session = sessions.claim(SessionRequest(LIMITS))
        started = time.monotonic()
        with contextlib.suppress(SandboxFailed):
            runner(session)("sh", "-c", f"{attack}; sleep 100", wall_time_s=2)
            assert session.ended is EndReason.LIMIT
        assert session.ended in {EndReason.LIMIT, EndReason.BROKEN}
        session.close()
        assert time.monotonic() - started < PATIENCE_S

    own_processes = True
    """Whether it has a pid namespace of its own."""
    agent_is_init = True
    """Whether the agent is the first process of that."""

    def test_a_kill_of_all_processes_is_survived(self, fresh: Session) -> None:
        """Where the agent is the first process of its namespace it can't be killed from inside; its helpers are started again."""
        if not self.agent_is_init:
            pytest.skip("the agent can be killed from inside")
        python = python_runner(fresh)
        python("x = 1", persistent=True)
        runner(fresh)("sh", "-c", "kill -KILL -1; kill -STOP -1; kill -TERM 1; kill -KILL 1; sleep 0.2")
        assert python("print('fresh')").stdout == b"fresh\n"
        outcome = python("print('x' in globals())", persistent=True)
        assert outcome.stdout == b"False\n"
        assert outcome.note.startswith("new Python session")
        assert runner(fresh)("echo", "on").stdout == b"on\n"

    def test_a_polite_kill_does_not_reach_the_agent(self, fresh: Session) -> None:
        run = runner(fresh)
        for number in ("HUP", "INT", "TERM", "USR1"):
            run("sh", "-c", f"kill -{number} $PPID")
        assert run("echo", "alive").stdout == b"alive\n"

    def test_nothing_of_the_agent_can_be_reached_through_proc(self, fresh: Session) -> None:
        outcome = runner(fresh)("sh", "-c", "ls -l /proc/$PPID/fd; cat /proc/$PPID/environ; head -c 10 /proc/$PPID/mem")
        assert outcome.stdout == b""
