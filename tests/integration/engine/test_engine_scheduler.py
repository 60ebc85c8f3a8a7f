"""A tick never waits for the object store, and nothing that is wrong with one row keeps the others waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import func, update

from dualtrack.db import claims, files, schedules
from dualtrack.db.engine import Database
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.domain.errors import BrokerUnavailable, StorageUnavailable
from dualtrack.domain.ids import new_id
from dualtrack.domain.job import Job, JobSpec
from dualtrack.domain.lifecycle import CallStatus, JobStatus
from dualtrack.domain.limits import LimitsChange
from dualtrack.domain.waiting import Held
from dualtrack.engine import children, ending, extension, scheduler
from dualtrack.engine.scheduler import Scheduler
from dualtrack.objects.blobs import BlobStore
from dualtrack.testing.families import by_task, calls_of, delegate, kids, parent_of, under_lock
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.stepper import Stepper

from .conftest import Make, finish, shell

_DEADLINE_S = 60.0


class StuckStore(MemoryStore):
    """Once it is told to, it keeps every request waiting, as one does whose packets are dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()
        self.free.set()
        self.waiting = 0

    def _called(self, method: str, key: str | None = None) -> None:
        if not self.free.is_set():
            self.waiting += 1
            assert self.free.wait(_DEADLINE_S)
        super()._called(method, key)


@pytest.fixture
def store() -> Iterator[StuckStore]:
    found = StuckStore()
    yield found
    found.free.set()


@pytest.fixture
def clock(make: Make) -> Iterator[Callable[[Stepper], Scheduler]]:
    """Schedulers with threads of their own."""
    made: list[Scheduler] = []

    def build(stepper: Stepper) -> Scheduler:
        made.append(Scheduler(stepper.runtime, tick_s=1))
        return made[-1]

    yield build
    for each in made:
        each.close()


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not done():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def untold(make: Make, monkeypatch: pytest.MonkeyPatch, *answers: str) -> tuple[Stepper, Job]:
    """A job whose children have ended with those answers, and whose workers died before they told it."""
    names = [f"kid{n}" for n in range(len(answers))]
    scripts = {"parent": [{"calls": [delegate(name) for name in names]}, finish("end")], "other": [finish("other")]}
    stepper = make(by_task(scripts | {name: [finish(answer)] for name, answer in zip(names, answers, strict=True)}))
    job = parent_of(stepper)
    with monkeypatch.context() as crash:
        crash.setattr(children, "tell_parent", lambda *_: None)
        while stepper.ring():
            pass
    assert [kid.status for kid in kids(stepper, job)] == [JobStatus.SUCCEEDED] * len(answers)
    return stepper, job


def held(stepper: Stepper, job: Job) -> int:
    return sum(call.held is Held.CHILD for call in calls_of(stepper, job))


def with_input(stepper: Stepper, *, instructions: str = "x") -> str:
    """A schedule that is due, whose job has a file."""
    blob = BlobStore(stepper.runtime.store, stepper.tenant_id).put(b"text")
    file_id, schedule_id = new_id("file"), new_id("sched")
    spec = JobSpec.model_validate({"instructions": instructions, "inputs": [{"file_id": file_id}]}).model_dump(mode="json")
    values = {"cron": "0 0 1 1 *", "timezone": "UTC", "overlap": "skip", "catch_up": "latest", "spec": spec, "next_at": func.now()}
    with stepper.runtime.database.transaction() as tx:
        stored: dict[str, Any] = {"size": blob.size, "sha256": blob.sha256, "blob_key": blob.key, "content_type": "text/plain"}
        files.add(tx, file_id=file_id, tenant_id=stepper.tenant_id, filename="a.txt", **stored)
        schedules.add(tx, {"id": schedule_id, "tenant_id": stepper.tenant_id, **values})
    return schedule_id


def outcomes(stepper: Stepper, schedule_id: str) -> list[str]:
    with stepper.runtime.database.transaction() as tx:
        return [run.outcome.value for run in schedules.runs(tx, schedule_id, limit=10)]


def test_a_store_that_gives_no_answer_stops_neither_the_tick_nor_the_rings(
    make: Make, store: StuckStore, monkeypatch: pytest.MonkeyPatch, clock: Callable[[Stepper], Scheduler]
) -> None:
    stepper, job = untold(make, monkeypatch, *["y" * 9000] * 3)
    schedule_id = with_input(stepper)
    both = [clock(stepper), clock(stepper)]
    store.free.clear()
    for each in both:
        each.tick()
    until(lambda: store.waiting >= 4)
    other = stepper.submit("other")
    stepper.doorbell.rings.clear()
    stepper.time_passes()
    for each in both:
        each.tick()
    assert ("plan", other.id) in stepper.doorbell.rings
    assert (held(stepper, job), outcomes(stepper, schedule_id)) == (3, [])
    assert store.waiting == 4  # one thread of each scheduler for the family, one for the schedule
    store.free.set()
    until(lambda: held(stepper, job) == 0 and outcomes(stepper, schedule_id) == ["started"])
    for each in both:
        each.close()
    assert stepper.run(job).answer == "end"
    assert [call.status for call in calls_of(stepper, job)] == [CallStatus.SUCCEEDED] * 3


def test_a_tick_waits_for_a_broker_that_is_away_once_and_not_for_each_ring(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    stepper = make([finish()])
    spec = JobSpec(instructions="x").model_dump(mode="json")
    row = {"tenant_id": stepper.tenant_id, "cron": "0 0 1 1 *", "timezone": "UTC", "overlap": "skip", "catch_up": "latest", "spec": spec}
    with stepper.runtime.database.transaction() as tx:
        for n in range(3):
            schedules.add(tx, row | {"id": f"sched_{n}", "next_at": func.clock_timestamp()})
    tried = []

    def away() -> None:
        tried.append(1)
        raise BrokerUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(stepper.doorbell, "check", away)
        for ticks in (1, 2):
            with pytest.raises(BrokerUnavailable):
                stepper.scheduler.tick()
            assert len(tried) == ticks
    assert [outcomes(stepper, f"sched_{n}") for n in range(3)] == [["started"]] * 3
    stepper.time_passes()
    stepper.scheduler.tick()
    assert len(stepper.doorbell.rings) == 3


def test_a_store_that_is_away_is_asked_again_after_a_pause(make: Make, store: StuckStore, monkeypatch: pytest.MonkeyPatch) -> None:
    stepper, job = untold(make, monkeypatch, "y" * 9000, "y" * 9000)
    schedule_id = with_input(stepper)
    asked = []

    def away(method: str, key: str | None = None) -> None:
        asked.append(method)
        raise StorageUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_called", away)
        stepper.scheduler.tick()
        first = len(asked)
        assert first == 2  # of the family's two, the second is not tried
        stepper.scheduler.tick()
        assert len(asked) == first
        stepper.time_passes()
        stepper.scheduler.tick()
        assert len(asked) == 2 * first
    stepper.time_passes()
    stepper.scheduler.tick()
    assert (held(stepper, job), outcomes(stepper, schedule_id)) == (0, ["started"])


def test_a_schedule_that_somebody_else_holds_keeps_no_thread_busy(make: Make, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    stepper = make([finish()])
    schedule_id, looks = with_input(stepper), []
    claim = schedules.claim

    def counted(tx: Any, wanted: str) -> Any:
        looks.append(wanted)
        return claim(tx, wanted)

    monkeypatch.setattr(schedules, "claim", counted)
    with database.transaction() as holder:
        schedules.get(holder, schedule_id, tenant_id=stepper.tenant_id, lock=True)
        stepper.scheduler.tick()
        assert looks == [schedule_id]
    stepper.scheduler.tick()
    assert outcomes(stepper, schedule_id) == ["started"]


def test_a_fault_with_one_child_keeps_no_other_waiting(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    stepper, job = untold(make, monkeypatch, "a", "b", "c")
    bad = kids(stepper, job)[0].id
    settle, tried = children.settle, []

    def fails(runtime: Any, child_id: str) -> bool:
        if child_id == bad:
            tried.append(child_id)
            raise KeyError("nobody foresaw this")
        return settle(runtime, child_id)

    with monkeypatch.context() as patch:
        patch.setattr(children, "settle", fails)
        for _ in range(3):
            stepper.scheduler.tick()
    assert (held(stepper, job), len(tried)) == (1, 1)
    stepper.time_passes()
    stepper.scheduler.tick()
    assert stepper.run(job).answer == "end"


def test_of_a_child_that_can_not_be_read_the_parent_hears_that(make: Make, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    stepper, job = untold(make, monkeypatch, "a", "b")
    bad, good = kids(stepper, job)
    with database.transaction() as tx:
        tx.connection.execute(update(jobs_table).where(jobs_table.c.id == bad.id).values(spec={}))
    stepper.scheduler.tick()
    told = {call.details["child_job_id"]: call for call in calls_of(stepper, job)}
    assert (told[bad.id].status, told[good.id].status) == (CallStatus.FAILED, CallStatus.SUCCEEDED)
    assert "can't be read by this release" in told[bad.id].preview
    assert stepper.run(job).answer == "end"


def test_rows_at_which_something_fails_neither_fill_the_look_nor_are_tried_at_every_tick(
    make: Make, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "BATCH", 2)
    stepper = make([finish()])
    late = [stepper.submit(str(n), limits={"on_limit": "fail"}) for n in range(3)]
    with database.transaction() as tx:
        for n, job in enumerate(late):
            due = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, 10 - n)
            tx.connection.execute(update(jobs_table).where(jobs_table.c.id == job.id).values(deadline_at=due))
    real, tried = ending.request_stop, []

    def fails(tx: Any, job: Job, *arguments: Any, **named: Any) -> bool:
        if job.id != late[2].id:
            tried.append(job.id)
            raise KeyError("nobody foresaw this")
        return real(tx, job, *arguments, **named)

    monkeypatch.setattr(scheduler, "request_stop", fails)
    for _ in range(3):
        stepper.scheduler.tick()
    assert tried == [late[0].id, late[1].id]
    assert [stepper.job(job).status for job in late] == [JobStatus.QUEUED, JobStatus.QUEUED, JobStatus.EXPIRED]


def test_a_job_that_can_neither_be_read_nor_ended_keeps_no_other_waiting(
    make: Make, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepper = make([finish()])
    bad, late = (stepper.submit(name, limits={"on_limit": "fail"}) for name in ("bad", "late"))
    with database.transaction() as tx:
        tx.connection.execute(update(jobs_table).values(deadline_at=func.now()))
        tx.connection.execute(update(jobs_table).where(jobs_table.c.id == bad.id).values(spec={}))

    def fails(*_: Any) -> bool:
        raise KeyError("nobody foresaw this")

    monkeypatch.setattr(scheduler, "end_unreadable", fails)
    stepper.scheduler.tick()
    assert stepper.job(late).status is JobStatus.EXPIRED


def test_a_schedule_that_can_not_be_acted_on_is_behind_the_others(
    make: Make, database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(claims, "BATCH", 1)
    stepper = make([finish()])
    spec = JobSpec(instructions="x").model_dump(mode="json")
    row = {"tenant_id": stepper.tenant_id, "cron": "0 0 1 1 *", "timezone": "UTC", "overlap": "skip", "catch_up": "latest"}
    with database.transaction() as tx:
        for name, record in (("sched_bad", {"instructions": 1}), ("sched_good", spec)):
            schedules.add(tx, row | {"id": name, "spec": record, "next_at": func.clock_timestamp()})
    for _ in range(3):
        stepper.scheduler.tick()
    assert outcomes(stepper, "sched_good") == ["started"]
    assert caplog.text.count("schedule sched_bad is left alone") == 1


def test_a_child_that_an_extension_leaves_short_is_looked_at_again_only_after_the_next(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = [shell(f"echo {n}") for n in range(4)]
    stepper = make(by_task({"parent": [delegate("kid"), finish("end")], "kid": [*busy, finish()]}))
    job = parent_of(stepper, limits={"steps": 2})
    stepper.rest()
    looks: list[str] = []
    look_again = extension.look_again

    def counted(tx: Any, runtime: Any, child: Job, **named: Any) -> bool:
        looks.append(child.id)
        return look_again(tx, runtime, child, **named)

    monkeypatch.setattr(extension, "look_again", counted)
    under_lock(stepper, job, extension.extend, LimitsChange(wall_time_s=10_000), by="test")
    for _ in range(3):
        stepper.scheduler.tick()
    (kid,) = kids(stepper, job)
    assert (kid.reason, looks) == ("budget", [kid.id])
    under_lock(stepper, job, extension.extend, LimitsChange(steps=50), by="test")
    stepper.scheduler.tick()
    assert kids(stepper, job)[0].hold is None
    assert looks == [kid.id, kid.id]
    assert stepper.run(job).answer == "end"
