"""Limits, deadlines, cancels and agents that give up."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import pytest
from sqlalchemy import func, text, update

from dualtrack.db.engine import Database
from dualtrack.db.tables import calls as calls_table
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.domain.errors import Conflict
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import CallStatus, JobStatus
from dualtrack.objects.parallel import PARALLEL
from dualtrack.objects.port import ObjectInfo
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.testing.stepper import Stepper

from .conftest import CountingSandbox, Make, cancel, finish, python, shell, types


@pytest.mark.parametrize(
    ("limits", "reason", "status"),
    [
        ({"steps": 2}, "limit_steps", JobStatus.FAILED),
        ({"tokens": 150}, "limit_tokens", JobStatus.FAILED),
    ],
)
def test_limits_end_a_job_with_their_name(make: Make, limits: dict[str, Any], reason: str, status: JobStatus) -> None:
    stepper = make([{**shell(f"echo {n}"), "input_tokens": 100, "output_tokens": 1} for n in range(20)])
    job = stepper.run(stepper.submit(limits=limits | {"on_limit": "fail"}))
    assert (job.status, job.reason) == (status, reason)


def test_a_job_past_its_wall_time_expires_in_the_queue_and_at_work(make: Make, database: Database, sandbox: CountingSandbox) -> None:
    def late() -> None:
        _late(stepper, database)

    stepper = make([shell("sleep 60"), finish()])
    waiting = stepper.submit(limits={"on_limit": "fail"})
    late()
    assert (stepper.job(waiting).status, stepper.job(waiting).reason) == (JobStatus.EXPIRED, "limit_wall_time")
    stepper.doorbell.rings.clear()
    working = stepper.submit("another", limits={"on_limit": "fail"})
    stepper.ring()
    sandbox.before = late
    stepper.ring()  # the running command is ended by the next heartbeat
    assert stepper.job(working).status is JobStatus.EXPIRED


FILES = 400
AFTER_S = 1.0
ALL_S = (FILES - 20) * AFTER_S / PARALLEL
"""What saving or restoring all would take."""


class SlowStore(MemoryStore):
    """Takes `pause_s` for each write and read, and calls `when` as the n-th of either begins; from then on it takes far longer."""

    def __init__(self) -> None:
        super().__init__()
        self.pause_s = 0.0
        self.nth = 0
        self.when: Callable[[], None] = lambda: None
        self.stopped_at = math.inf
        self.released = threading.Event()
        self._counting = threading.Lock()

    def put(self, key: str, data: bytes | BinaryIO, *, content_type: str = "application/octet-stream") -> ObjectInfo:
        self._slow()
        return super().put(key, data, content_type=content_type)

    def stream(self, key: str, *, chunk_bytes: int = 262_144) -> Iterator[bytes]:
        self._slow()
        return super().stream(key, chunk_bytes=chunk_bytes)

    def stop_at(self, nth: int, when: Callable[[], None], pause_s: float = 0.1) -> None:
        self.nth, self.when, self.pause_s = nth, when, pause_s

    def _slow(self) -> None:
        if not self.pause_s:
            return
        with self._counting:
            self.nth -= 1
            if self.nth == 0:
                self.when()
                self.pause_s = max(self.pause_s, AFTER_S)
                self.stopped_at = time.monotonic()
        self.released.wait(self.pause_s)


FILL = python(f"import os\nfor n in range({FILES}): open(str(n), 'wb').write(os.urandom(70_000))")


@pytest.fixture
def slow() -> SlowStore:
    return SlowStore()


@pytest.fixture
def store(slow: SlowStore) -> MemoryStore:
    return slow


def _cancel(stepper: Stepper, job: Job) -> None:
    assert cancel(stepper, job)


def _late(stepper: Stepper, database: Database) -> None:
    with database.transaction() as tx:
        tx.connection.execute(update(jobs_table).values(deadline_at=func.now()))
    stepper.scheduler.tick()


@pytest.mark.parametrize("target", [JobStatus.CANCELLED, JobStatus.EXPIRED])
def test_a_stop_reaches_a_call_whose_files_are_being_saved(
    make: Make, slow: SlowStore, database: Database, sandbox: CountingSandbox, target: JobStatus
) -> None:
    stepper = make([FILL, finish()])
    job = stepper.submit(limits={"on_limit": "fail"})
    stepper.ring()
    slow.stop_at(20, lambda: _cancel(stepper, job) if target is JobStatus.CANCELLED else _late(stepper, database))
    stepper.ring()
    assert time.monotonic() - slow.stopped_at < ALL_S / 2
    job = stepper.job(job)
    assert job.status is target
    assert job.workspace is None
    assert [call.status for call in stepper.steps(job)[0].calls] == [CallStatus.CANCELLED]
    assert len(sandbox.ran) == 1


@pytest.mark.parametrize("command", [FILL, shell("yes | head -c 300000"), shell("echo x > small")], ids=["many", "output", "one"])
def test_a_cancel_does_not_wait_for_a_store_that_does_not_answer(make: Make, slow: SlowStore, command: dict[str, Any]) -> None:
    stepper = make([command, finish()])
    job = stepper.submit()
    stepper.ring()
    slow.stop_at(1, lambda: _cancel(stepper, job), pause_s=120)
    stepper.ring()
    assert time.monotonic() - slow.stopped_at < 60
    slow.released.set()
    job = stepper.job(job)
    assert (job.status, job.workspace) == (JobStatus.CANCELLED, None)
    assert [call.status for call in stepper.steps(job)[0].calls] == [CallStatus.CANCELLED]


def test_a_stop_reaches_a_call_whose_files_are_being_restored(make: Make, slow: SlowStore, sandbox: CountingSandbox) -> None:
    stepper = make([FILL, shell("touch never"), finish()])
    job = stepper.submit()
    for _ in range(3):
        stepper.ring()
    before = stepper.job(job).workspace
    assert before is not None
    slow.stop_at(20, lambda: _cancel(stepper, job))
    _, call_id = stepper.doorbell.rings.popleft()
    make([]).executor.run(call_id)  # another one, that has none of the files
    assert time.monotonic() - slow.stopped_at < ALL_S / 2
    job = stepper.job(job)
    assert (job.status, job.workspace) == (JobStatus.CANCELLED, before)
    assert [call.status for call in stepper.steps(job)[1].calls] == [CallStatus.CANCELLED]
    assert len(sandbox.ran) == 1, "the command itself was never begun"


def test_cancel_in_the_queue_ends_at_once_and_again_is_no_error(make: Make) -> None:
    stepper = make([finish()])
    job = stepper.submit()
    assert cancel(stepper, job)
    assert stepper.job(job).status is JobStatus.CANCELLED
    assert not cancel(stepper, job)
    while stepper.ring():
        pass
    assert types(stepper, job) == ["job.queued", "job.stopping", "job.cancelled"]


def test_cancel_ends_a_running_command_and_the_calls_behind_it(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([{"calls": [shell("sleep 60"), shell("touch never")]}])
    job = stepper.submit()
    stepper.ring()

    def stop() -> None:
        cancel(stepper, job)

    sandbox.before = stop
    stepper.ring()
    job = stepper.job(job)
    assert job.status is JobStatus.CANCELLED
    assert [call.status for call in stepper.steps(job)[0].calls] == [CallStatus.CANCELLED] * 2
    assert len(sandbox.ran) == 1
    shown = stepper.steps(job)[0].calls[0].preview
    assert "cancelled" in shown


def test_cancel_during_a_decision_ends_the_job_at_once_and_drops_the_decision(make: Make) -> None:
    seen: list[JobStatus] = []

    def stop(_: object) -> None:
        cancel(stepper, job)
        seen.append(stepper.job(job).status)

    stepper = make(ScriptedModel([shell("touch never")], on_decide=stop))
    job = stepper.submit()
    stepper.ring()
    assert seen == [JobStatus.CANCELLED]
    assert stepper.job(job).step == 0
    assert not stepper.doorbell.rings
    assert types(stepper, job)[-1] == "job.cancelled"


def test_an_ended_job_can_not_be_cancelled(make: Make) -> None:
    stepper = make([finish()])
    job = stepper.run(stepper.submit())
    with pytest.raises(Conflict):
        cancel(stepper, job)


def test_a_cancelled_job_whose_worker_died_is_ended_by_the_scheduler(make: Make, database: Database) -> None:
    stepper = make([shell("true")])
    job = stepper.submit()
    stepper.ring()
    dead = 1 << 60
    with database.transaction() as tx:
        tx.connection.execute(
            update(calls_table).values(status="running", owner=stepper.presence.key, lease_until=func.now() + text("interval '1 hour'"))
        )
    cancel(stepper, job)
    assert stepper.job(job).status is JobStatus.RUNNING  # somebody living works on it
    with database.transaction() as tx:
        tx.connection.execute(update(calls_table).values(owner=dead))
    stepper.scheduler.tick()
    assert stepper.job(job).status is JobStatus.CANCELLED


def test_the_same_failing_call_again_and_again_is_stopped(make: Make) -> None:
    stepper = make([shell("false")] * 10)
    job = stepper.run(stepper.submit())
    assert (job.status, job.reason, job.step) == (JobStatus.FAILED, "no_progress", 3)
    assert job.message is not None
    assert job.message.startswith("shell failed the same way 3 times in a row")

    stepper = make([finish()] * 10)
    job = stepper.run(stepper.submit("checked", checks=["echo no luck; false"]))
    assert job.message is not None
    assert "'echo no luck; false' failed" in job.message
    assert "no luck" in job.message


def test_giving_up_is_a_failure_with_the_agents_answer(make: Make) -> None:
    stepper = make([finish("there is no such file", success=False)])
    job = stepper.run(stepper.submit(checks=["true"]))
    assert (job.status, job.reason, job.answer) == (JobStatus.FAILED, "agent_gave_up", "there is no such file")


def test_a_stop_reaches_a_running_command_without_a_heartbeat(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([shell("sleep 60")], heartbeat_s=1000, lease_s=3000)
    job = stepper.submit()
    stepper.ring()
    asked: list[float] = []

    def stop() -> None:
        cancel(stepper, job)
        asked.append(time.monotonic())

    sandbox.before = stop
    stepper.ring()
    assert time.monotonic() - asked[0] < 45  # the command would have taken a minute
    assert stepper.job(job).status is JobStatus.CANCELLED
