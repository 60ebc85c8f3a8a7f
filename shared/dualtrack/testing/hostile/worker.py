"""An executor's sandboxes under load: hostile programs in some threads, a well-behaved one in another. Prints one JSON line for each run.

Started by `python -m dualtrack.testing.hostile`, with a `Job` as JSON in its arguments. Ends in order when its standard input does; a
hostile one is usually killed before.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict

from dualtrack.domain.errors import DualtrackError
from dualtrack.domain.limits import KIB, MIB, SandboxLimits
from dualtrack.sandbox.factory import open_sandboxes
from dualtrack.sandbox.port import Command, Ended
from dualtrack.sandbox.sandboxes import Sandboxes
from dualtrack.sandbox.sessions import EndReason, PythonCell, SessionRequest
from dualtrack.settings import SandboxSettings
from dualtrack.testing.escapes import inside
from dualtrack.testing.escapes.attempt import Attempt
from dualtrack.testing.escapes.bombs import BOMBS, LIMITS
from dualtrack.testing.escapes.leftovers import LEFTOVERS

SUITE_LIMITS: Final = SandboxLimits(memory_bytes=160 * MIB, processes=48)
_GOOD_LIMITS: Final = SandboxLimits(wall_time_s=60, cpu_time_s=20, memory_bytes=160 * MIB, processes=48, output_bytes=64 * KIB)
_GOOD_SOURCE: Final = """
import json, statistics
values = [n * n % 97 for n in range(20000)]
with open("report.json", "w") as file: json.dump({"mean": statistics.mean(values), "count": len(values)}, file)
print("written")
"""
_GOOD_ANSWER: Final = {"mean": 47.98785, "count": 20000}
_PAUSE_S: Final = 0.05
_POOL: Final = {"template": "shell", "pool_templates": ["shell"], "pool_min": 2, "pool_max": 2}
"""Of one size, so that what an executor has open at the end can be compared with what it had at its start."""


class Job(BaseModel):
    """What a worker is to do."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    driver: str
    workspaces: Path
    uid: int
    seed: int
    hostile: int
    """Threads that run hostile programs."""
    good: int
    """Threads of well-behaved work."""


def programs() -> list[Attempt]:
    """The hostile programs: bombs, floods, and what tries to stay behind."""
    return [*BOMBS, *LEFTOVERS]


class Worker:
    """Runs until `stop` is set."""

    def __init__(self, job: Job, sandboxes: Sandboxes) -> None:
        self._job = job
        self._pool = sandboxes.pool
        self._lock = threading.Lock()
        self._source = Path(inside.__file__).read_text()
        self.stop = threading.Event()
        self._threads = [threading.Thread(target=self._hostile, args=(number,)) for number in range(job.hostile)]
        self._threads += [threading.Thread(target=self._good) for _ in range(job.good)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join()

    def tell(self, **what: Any) -> None:
        """One line for the parent."""
        with self._lock:
            sys.stdout.write(json.dumps(what) + "\n")
            sys.stdout.flush()

    def _hostile(self, number: int) -> None:
        chance = random.Random(f"{self._job.seed}-{number}")
        while not self.stop.is_set():
            program = chance.choice(programs())
            marker = str(10**8 + chance.randrange(10**9))
            started = time.monotonic()
            try:
                ended = self._attack(program, marker)
            except DualtrackError as error:  # it has broken its own sandbox
                ended = type(error).__name__
            self.tell(kind="hostile", name=program.name, ended=ended, s=time.monotonic() - started)
            self.stop.wait(_PAUSE_S)

    def _attack(self, program: Attempt, marker: str) -> str:
        limits = LIMITS.model_copy(update=dict(program.limits))
        order = {
            "host": {"markers": {program.name: marker}},
            "attempts": [{"name": program.name, "source": program.source}],
            "patience_s": 60,
        }
        session = self._pool.claim(SessionRequest(limits))
        try:
            command = Command(("python3", "-I", "-c", self._source), stdin=json.dumps(order).encode())
            return session.run(command, limits, threading.Event()).ended.value
        finally:
            session.close()

    def _good(self) -> None:
        while not self.stop.is_set():
            started = time.monotonic()
            try:
                problem = self._work()
            except DualtrackError as error:
                problem = f"{type(error).__name__}: {error.message}"
            self.tell(kind="good", problem=problem, s=time.monotonic() - started)
            self.stop.wait(_PAUSE_S)

    def _work(self) -> str:
        """A small analysis in two commands; what is wrong with it, or nothing."""
        session = self._pool.claim(SessionRequest(_GOOD_LIMITS))
        try:
            first = session.python(PythonCell(_GOOD_SOURCE), _GOOD_LIMITS, threading.Event())
            if (first.ended, first.exit_code, first.stdout) != (Ended.EXITED, 0, b"written\n"):
                return f"the analysis: {first.ended} {first.exit_code} {first.note} {first.stderr[-300:]!r}"
            second = session.run(Command(("cat", "report.json")), _GOOD_LIMITS, threading.Event())
            if second.exit_code != 0 or json.loads(second.stdout) != _GOOD_ANSWER:
                return f"the report: {second.ended} {second.exit_code} {second.note} {second.stdout[:300]!r}"
        finally:
            session.close(EndReason.DONE)
        return ""


def main() -> int:
    """The process."""
    job = Job.model_validate_json(sys.argv[1])
    settings = SandboxSettings.model_validate({"driver": job.driver, "workspaces": job.workspaces, "uid": job.uid, **_POOL})
    with open_sandboxes(settings, SUITE_LIMITS) as sandboxes, Worker(job, sandboxes) as worker:
        worker.tell(kind="started")
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
