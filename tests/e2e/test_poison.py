"""A call that kills its executor each time fails its own job, and nobody else's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import psutil  # type: ignore[import-untyped]
from sqlalchemy import select

from dualtrack.db.tables import calls
from dualtrack.doctor.examination import examine
from dualtrack.domain.limits import SUSPECT_TRIES, PlatformLimits
from dualtrack.testing.stack import Stack

POISON = "sleep 86123"
NEIGHBOURS = 3
ATTEMPTS = PlatformLimits().attempts


def shell(command: str) -> dict[str, Any]:
    return {"tool": "shell", "arguments": {"command": command}}


FINISH = {"tool": "finish", "arguments": {"answer": "done"}}


def executor_of(marker: str) -> psutil.Process | None:
    """The executor's process above a sandboxed command whose command line has `marker`."""
    for process in psutil.process_iter(["cmdline"]):
        if marker in " ".join(process.info["cmdline"] or ()):
            try:
                found = [parent for parent in process.parents() if "executor.main" in parent.cmdline()]
            except psutil.NoSuchProcess:
                continue
            if found:
                return found[0]
    return None


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Executioner(threading.Thread):
    """Kills whichever process runs the poison, as a crash of it would; and starts the executor anew, as a supervisor does."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(daemon=True)
        self.killed: list[list[str]] = []
        self.restarts = 0
        self.stop = threading.Event()
        self._stack = stack

    def run(self) -> None:
        while not self.stop.wait(0.05):
            found = executor_of(POISON)
            if found is not None:
                self.killed.append(found.cmdline())
                found.kill()
                while _alive(found):  # not waited for: that is up to whoever started it
                    time.sleep(0.01)
            if not self._stack.process("executor").running():
                self._stack.kill("executor")
                self._stack.start("executor")
                self.restarts += 1


def until(done: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_poison_call_ends_its_own_job_and_no_other(stack: Stack) -> None:
    executioner = Executioner(stack)
    executioner.start()
    poison = stack.submit([shell(POISON), FINISH])
    # While the poison kills, its neighbours are at work in the same process, again and again.
    innocent = [stack.submit([shell(f"sleep 1.{n}"), shell(f"sleep 2.{n}"), shell(f"sleep 1.{n}"), FINISH]) for n in range(NEIGHBOURS)]
    try:
        job = stack.wait(poison, timeout_s=200)
        assert (job["status"], job["reason"]) == ("failed", "attempts_exhausted")
        assert f"was tried {ATTEMPTS} times" in job["message"]
        for other in innocent:
            assert stack.wait(other, timeout_s=120)["status"] == "succeeded"
    finally:
        executioner.stop.set()
        executioner.join()
    # The first deaths took the executor along; from then on a process of its own died alone.
    alone = [command for command in executioner.killed if "--only" in command]
    assert len(executioner.killed) == ATTEMPTS
    assert len(alone) == ATTEMPTS - SUSPECT_TRIES
    assert executioner.restarts == SUSPECT_TRIES
    with stack.database.transaction() as tx:
        attempts = (
            tx.connection.execute(select(calls.c.attempt).where(calls.c.job_id.in_(innocent), calls.c.tool == "shell")).scalars().all()
        )
    assert max(attempts) <= SUSPECT_TRIES + 1
    broken = [finding.name for finding in examine(stack.database) if not finding.holds]
    assert broken == []
