"""The life of jobs against a simple model: whatever is asked, lost, doubled, crashed or frozen, in whatever order, statuses are those that
the model allows, every promise holds all along, and in the end every job ends.

A few hundred steps by default; `TEST_LIFECYCLE=1000` for so many examples.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule, run_state_machine_as_test
from sqlalchemy import text

from dualtrack.db import approvals as approval_rows
from dualtrack.db import jobs
from dualtrack.db.engine import Database
from dualtrack.doctor import examination
from dualtrack.domain.errors import Conflict, InvalidRequest
from dualtrack.domain.forking import Changes
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import TERMINAL, JobStatus
from dualtrack.domain.limits import LimitsChange, PlatformLimits
from dualtrack.domain.waiting import Hold
from dualtrack.engine import ending, extension, forks, steering
from dualtrack.engine.approvals import Decisions
from dualtrack.models.port import DecisionRequest
from dualtrack.objects.workdirs import Workdirs
from dualtrack.sandbox.port import Outcome
from dualtrack.settings import SandboxSettings
from dualtrack.testing.model_script import Script
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.sandbox import FakeSessions, completed
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.testing.stepper import Stepper

from .conftest import finish, shell

EXAMPLES: Final = int(os.environ.get("TEST_LIFECYCLE", "12"))
STEPS: Final = 40
EVERY: Final = 6
"""Steps from one look of the doctor to the next: it takes longer than most steps."""
READ: Final = {"tool": "read_file", "arguments": {"path": "a"}}
SCRIPTS: Final[Mapping[str, list[dict[str, Any]]]] = {
    "short": [finish()],
    "two calls": [shell("true"), shell("true"), finish()],
    "waves": [{"calls": [shell("true"), READ, READ, shell("true")]}, finish()],
    "gives up": [shell("true"), finish(success=False)],
    "no action": [{"text": "?"}, shell("true"), finish()],
}
SPECS: Final[Mapping[str, dict[str, Any]]] = {
    "plain": {},
    "checked": {"checks": ["true", "true"]},
    "asks": {"agent": {"policies": [{"tool": "shell", "action": "ask"}]}},
    "short of steps": {"limits": {"steps": 1}},
}
ASKED: Final = frozenset({"approval", "budget"})
"""What a job may wait for without having been paused."""


class Crash(BaseException):
    """A process that is gone, or frozen, with its claim."""


@dataclass
class Expected:
    """What the model knows of a job."""

    job: Job
    paused: bool = False
    cancelled: bool = False
    ended: Job | None = None


class Lifecycle(RuleBasedStateMachine):
    """Rules are what people, workers and accidents do; see the module."""

    stepper: ClassVar[Stepper]
    known = Bundle("known")

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[str, Expected] = {}
        self.crashing: str | None = None
        self.looks = 0
        self.stepper.doorbell.rings.clear()

    # --- what people do

    @rule(target=known, script=st.sampled_from(sorted(SCRIPTS)), spec=st.sampled_from(sorted(SPECS)))
    def submit(self, script: str, spec: str) -> str:
        job = self.stepper.submit(script, **SPECS[spec])
        self.jobs[job.id] = Expected(job)
        return job.id

    @rule(job_id=known)
    def pause(self, job_id: str) -> None:
        with self._allowed(job_id) as asked, self.stepper.runtime.database.transaction() as tx:
            job = jobs.get(tx, job_id, lock=True)
            if job.hold is Hold.BUDGET:
                return
            steering.pause(tx, self.stepper.runtime, job, by="test")
            asked.paused = True

    @rule(job_id=known)
    def resume(self, job_id: str) -> None:
        with self._allowed(job_id) as asked, self.stepper.runtime.database.transaction() as tx:
            job = jobs.get(tx, job_id, lock=True)
            if not asked.paused and job.status is JobStatus.WAITING:
                with pytest.raises(Conflict):
                    steering.resume(tx, self.stepper.runtime, job, by="test")
                return
            steering.resume(tx, self.stepper.runtime, job, by="test")
            asked.paused = False

    @rule(job_id=known)
    def cancel(self, job_id: str) -> None:
        with self._allowed(job_id, cancelling=True) as asked, self.stepper.runtime.database.transaction() as tx:
            ending.request_stop(tx, jobs.get(tx, job_id, lock=True), JobStatus.CANCELLED, by="test")
            asked.cancelled = True

    @rule(job_id=known)
    def write(self, job_id: str) -> None:
        with self._allowed(job_id), self.stepper.runtime.database.transaction() as tx:
            steering.write(tx, self.stepper.runtime, jobs.get(tx, job_id, lock=True), "a word", by="test")

    @rule(target=known, job_id=known, step=st.integers(0, 3), message=st.booleans())
    def fork(self, job_id: str, step: int, message: bool) -> Any:
        source = self.jobs[job_id].job
        changes = Changes(message="go on" if message else None)
        try:
            job, new = forks.fork(
                self.stepper.runtime, tenant_id=source.tenant_id, job_id=job_id, step=step, changes=changes, known_models=["deep"]
            )
        except (Conflict, InvalidRequest):
            return multiple()
        assert (new, job.step, job.forked_from, job.forked_step) == (True, step, job_id, step)
        self.jobs[job.id] = Expected(job)
        return job.id

    @rule(job_id=known, yes=st.booleans())
    def decide(self, job_id: str, yes: bool) -> None:
        with self.stepper.runtime.database.transaction() as tx:
            pending = approval_rows.pending(tx, job_id)
        decisions = Decisions(self.stepper.runtime, tenant_id=self.stepper.tenant_id, by="test")
        for asked in pending[:1]:
            with suppress(Conflict):  # the job was told to stop
                decisions.approve(asked.id) if yes else decisions.deny(asked.id, reason="no")

    @rule(job_id=known)
    def extend(self, job_id: str) -> None:
        with self._allowed(job_id), self.stepper.runtime.database.transaction() as tx:
            job = jobs.get(tx, job_id, lock=True)
            extension.extend(tx, self.stepper.runtime, job, LimitsChange(steps=job.limits.steps + 5), by="test")

    # --- what workers and accidents do

    @rule(which=st.integers(0, 5), times=st.sampled_from([1, 1, 1, 2]))
    def ring(self, which: int, times: int) -> None:
        """A ring arrives, out of turn perhaps, and perhaps twice."""
        rings = self.stepper.doorbell.rings
        if rings:
            rings.rotate(-(which % len(rings)))
            rings.extendleft([rings[0]] * (times - 1))
            for _ in range(times):
                self._ring()

    @rule()
    def rings_are_lost(self) -> None:
        self.stepper.doorbell.rings.clear()

    @rule(where=st.sampled_from(["planner", "executor"]))
    def crash(self, where: str) -> None:
        """The next ring that gets so far claims and never records."""
        self.crashing = where
        self._ring()
        self.crashing = None

    @rule()
    def leases_lapse(self) -> None:
        self.stepper.leases_run_out()

    @rule()
    def tick(self) -> None:
        self.stepper.scheduler.tick()

    @rule()
    def time_passes(self) -> None:
        self.stepper.time_passes()
        self.stepper.scheduler.tick()

    # --- what must hold

    @invariant()
    def statuses_are_those_allowed(self) -> None:
        for job_id, expected in self.jobs.items():
            now = self.stepper.job(expected.job)
            if expected.ended is not None:
                assert now == expected.ended, "an ended job was changed"
            elif now.status in TERMINAL:
                ends = {JobStatus.CANCELLED} if expected.cancelled else {JobStatus.SUCCEEDED, JobStatus.FAILED}
                assert now.status in ends, (job_id, now.status, now.reason)
                expected.ended = now
            elif expected.cancelled:
                assert now.stopping is JobStatus.CANCELLED
            elif expected.paused:
                assert now.hold is Hold.PAUSED
                assert now.status is JobStatus.RUNNING or (now.status is JobStatus.WAITING and now.reason == "paused"), now
            else:
                assert now.hold in {None, Hold.BUDGET}
                assert now.status is not JobStatus.WAITING or now.reason in ASKED, (job_id, now.reason)

    @invariant()
    def promises_hold_all_along(self) -> None:
        self.looks += 1
        if self.looks % EVERY == 0:
            self.promises_hold()

    def promises_hold(self) -> None:
        found = [finding for finding in examination.examine(self.stepper.runtime.database) if not finding.holds]
        assert [(finding.name, finding.first) for finding in found] == []

    def teardown(self) -> None:
        """Once nobody asks for anything else and nothing goes wrong any more, every job comes to its end."""
        try:
            for _ in range(60):
                self._care()
                self.statuses_are_those_allowed()
                if all(expected.ended for expected in self.jobs.values()):
                    return
            raise AssertionError([self.stepper.job(expected.job) for expected in self.jobs.values() if not expected.ended])
        finally:
            self.promises_hold()
            with self.stepper.runtime.database.transaction() as tx:
                tx.connection.execute(text("SET LOCAL dualtrack.retention = 'on'"))
                tx.connection.execute(text("TRUNCATE jobs CASCADE"))

    def _care(self) -> None:
        for job_id, expected in self.jobs.items():
            if expected.ended is None:
                self.decide(job_id, yes=True)
                if expected.paused:
                    self.resume(job_id)
                if self.stepper.job(expected.job).hold is Hold.BUDGET:
                    self.extend(job_id)
        self.stepper.leases_run_out()
        self.stepper.time_passes()
        self.stepper.scheduler.tick()
        while self._ring():
            pass

    def _ring(self) -> bool:
        try:
            return self.stepper.ring()
        except Crash:
            return True

    def allowed(self, job_id: str, *, cancelling: bool) -> bool:
        """Whether anything can still be asked of a job."""
        expected = self.jobs[job_id]
        if expected.ended is None:
            return cancelling or not expected.cancelled
        return cancelling and expected.ended.status is JobStatus.CANCELLED

    def _allowed(self, job_id: str, *, cancelling: bool = False) -> _Asked:
        return _Asked(self, job_id, cancelling=cancelling)


class _Asked:
    """A block that asks something of a job: refused by a conflict exactly where the model says so."""

    def __init__(self, machine: Lifecycle, job_id: str, *, cancelling: bool) -> None:
        self._expected = machine.jobs[job_id]
        self._allowed = machine.allowed(job_id, cancelling=cancelling)

    def __enter__(self) -> Expected:
        return self._expected

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if self._allowed or (kind is not None and not issubclass(kind, Conflict)):
            return False
        assert kind is not None, "an ended or stopping job let itself be asked"
        return True


@pytest.fixture
def machine(database: Database, scratch: Path) -> Iterator[type[Lifecycle]]:
    current: list[Lifecycle] = []

    class Machine(Lifecycle):
        def __init__(self) -> None:
            super().__init__()
            current[:] = [self]

    def crash(where: str) -> None:
        if current[0].crashing == where:
            current[0].crashing = None
            raise Crash

    def script(request: DecisionRequest) -> Any:
        return Script.model_validate(SCRIPTS[request.task.split("\n")[0]])

    def answer(*_: object) -> Outcome:
        crash("executor")
        return completed()

    # Nothing happens by itself: neither heartbeats nor looks at the connection, and no attempt is the last one.
    limits = PlatformLimits(heartbeat_s=1000, lease_s=3000, attempts=1000, same_failure=1000)
    gateway = ScriptedModel(script, on_decide=lambda _: crash("planner"))
    with Workdirs(SandboxSettings(workspaces=scratch)) as workdirs:
        Machine.stepper = Stepper(database, MemoryStore(), gateway, FakeSessions(scratch / "fakes", repeat(answer)), workdirs, limits)
        with Machine.stepper.present():
            yield Machine


@pytest.mark.timeout(600 + 10 * EXAMPLES)
def test_the_life_of_jobs_is_what_the_model_says(machine: type[Lifecycle]) -> None:
    bounded = settings(
        max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, database=None, derandomize=EXAMPLES < 100,
        suppress_health_check=list(HealthCheck), print_blob=True,
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=bounded)
