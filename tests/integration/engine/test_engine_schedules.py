"""Schedules: each time gives its job exactly once, whatever the schedulers do; overlap, missed times, failures."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import select

from dualtrack.db import clock as database_clock
from dualtrack.db import jobs, schedules, webhooks
from dualtrack.db.idempotency import RequestKey
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.domain.errors import StorageUnavailable
from dualtrack.domain.ids import new_id
from dualtrack.domain.job import JobSpec
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.domain.schedule import RunOutcome, Schedule, ScheduleRun
from dualtrack.engine import intake
from dualtrack.engine import schedules as engine
from dualtrack.net.addresses import AllowList
from dualtrack.testing.stepper import Stepper, run_schedules
from dualtrack.webhooks.resealing import reseal
from dualtrack.webhooks.sealing import MARK, Sealer
from dualtrack.webhooks.signature import new_secret

from .conftest import Make, cancel, finish

HOUR = timedelta(hours=1)


class Clockwork:
    """A stepper with schedules whose times the test sets."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper, self.runtime = stepper, stepper.runtime

    def add(self, cron: str = "0 * * * *", *, spec: dict[str, Any] | None = None, **more: Any) -> Schedule:
        schedule_id = new_id("sched")
        job = JobSpec.model_validate({"instructions": "x", **(spec or {})}).model_dump(mode="json")
        values = {"cron": cron, "timezone": "UTC", "overlap": "skip", "catch_up": "latest", "spec": job, **more}
        with self.runtime.database.transaction() as tx:
            schedules.add(tx, {"id": schedule_id, "tenant_id": self.stepper.tenant_id, **values})
        return self.get(schedule_id)

    def get(self, schedule_id: str) -> Schedule:
        with self.runtime.database.transaction() as tx:
            return schedules.get(tx, schedule_id, tenant_id=self.stepper.tenant_id)

    def now(self) -> datetime:
        with self.runtime.database.transaction() as tx:
            return database_clock.now(tx)

    def due(self, schedule: Schedule, at: datetime | None = None) -> datetime:
        """Let a time come: now, unless one is given."""
        tick = at or self.now()
        with self.runtime.database.transaction() as tx:
            schedules.change(tx, schedule.id, {"next_at": tick})
        return tick

    def runs(self, schedule: Schedule) -> list[ScheduleRun]:
        """Oldest first."""
        with self.runtime.database.transaction() as tx:
            return schedules.runs(tx, schedule.id, limit=100)[::-1]

    def outcomes(self, schedule: Schedule) -> list[str]:
        return [run.outcome.value for run in self.runs(schedule)]

    def status(self, run: ScheduleRun) -> JobStatus:
        assert run.job_id is not None
        with self.runtime.database.transaction() as tx:
            return jobs.get(tx, run.job_id).status

    def end(self, run: ScheduleRun) -> None:
        assert run.job_id is not None
        with self.runtime.database.transaction() as tx:
            job = jobs.get(tx, run.job_id)
        cancel(self.stepper, job)

    def jobs(self) -> int:
        with self.runtime.database.transaction() as tx:
            return len(list(tx.connection.execute(select(jobs_table.c.id))))


@pytest.fixture
def clock(make: Make) -> Clockwork:
    return Clockwork(make([finish()]))


def test_a_schedules_secret_is_opened_for_its_jobs_and_an_unreadable_one_is_its_own_failure(make: Make) -> None:
    key, secret = Fernet.generate_key().decode(), new_secret()
    clockwork = Clockwork(make([finish()]))
    hook = {"url": "https://192.0.2.1/", "secret": secret, "events": ["job.failed"]}
    schedule = clockwork.add(spec={"webhook": hook})
    assert (schedule.secret, schedule.spec.webhook and schedule.spec.webhook.secret) == (secret, None)
    allowed = replace(clockwork.runtime, allow=AllowList.parse(["192.0.2.0/24"]), sealer=Sealer([key]))
    assert reseal(allowed.database, allowed.sealer).sealed == 1
    schedule = clockwork.get(schedule.id)
    assert schedule.secret is not None
    assert schedule.secret.startswith(MARK)
    clockwork.due(schedule)
    run_schedules(allowed)
    (run,) = clockwork.runs(schedule)
    assert run.job_id is not None
    with allowed.database.transaction() as tx:
        told = webhooks.of_job(tx, run.job_id, schedule.tenant_id)
        jobs.end(tx, run.job_id, JobStatus.CANCELLED, reason=None, message=None, answer=None)
    assert told is not None
    assert told.secret.startswith(MARK)
    assert allowed.sealer.open(told.secret) == secret
    clockwork.due(schedule)
    run_schedules(replace(allowed, sealer=Sealer()))
    failed = clockwork.runs(schedule)[-1]
    assert failed.outcome is RunOutcome.FAILED
    assert "DUALTRACK_WEBHOOKS__SECRET_KEYS" in str(failed.message)


def test_a_time_that_comes_gives_a_job_and_the_next_time(clock: Clockwork) -> None:
    schedule = clock.add(spec={"metadata": {"a": "b"}})
    assert run_schedules(clock.runtime) == 0
    tick = clock.due(schedule)
    clock.stepper.scheduler.tick()
    (run,) = clock.runs(schedule)
    assert (run.tick_at, run.outcome, run.missed, run.manual, run.message) == (tick, RunOutcome.STARTED, 0, False, None)
    following = clock.get(schedule.id).next_at
    assert following is not None
    assert tick < following <= tick + HOUR
    assert (following.minute, following.second, following.microsecond) == (0, 0, 0)
    assert run.job_id is not None
    with clock.runtime.database.transaction() as tx:
        job = jobs.get(tx, run.job_id)
    assert job.spec.metadata == {"a": "b"}
    assert ("plan", job.id) in clock.stepper.doorbell.rings
    assert clock.stepper.events(job)[0].data["schedule"] == {"id": schedule.id, "at": tick.isoformat()}
    assert clock.stepper.run(job).status is JobStatus.SUCCEEDED
    clock.stepper.scheduler.tick()
    assert len(clock.runs(schedule)) == 1


def test_two_schedulers_at_once_give_each_time_one_job(clock: Clockwork) -> None:
    many = [clock.add(overlap=overlap) for overlap in ("skip", "queue", "cancel") for _ in range(5)]
    ticks = {schedule.id: clock.due(schedule) for schedule in many}
    start = threading.Barrier(4)

    def run() -> None:
        start.wait()
        run_schedules(clock.runtime)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run_schedules(clock.runtime)
    for schedule in many:
        assert [(run.tick_at, run.outcome) for run in clock.runs(schedule)] == [(ticks[schedule.id], RunOutcome.STARTED)]
    assert clock.jobs() == len(many)


@pytest.mark.parametrize("where", ["record", "change", "forget"])
def test_a_scheduler_that_dies_half_way_leaves_the_time_for_the_next(clock: Clockwork, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    schedule = clock.add()
    tick = clock.due(schedule)

    def die(*_: Any, **__: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(schedules, where, die)
        assert run_schedules(clock.runtime) == 0
    assert (clock.jobs(), clock.runs(schedule), clock.get(schedule.id).next_at) == (0, [], tick)
    assert run_schedules(clock.runtime) == 0  # it is left alone for a while
    clock.stepper.time_passes()
    assert run_schedules(clock.runtime) == 1
    assert (clock.jobs(), clock.outcomes(schedule)) == (1, ["started"])


def test_a_time_that_was_given_before_is_done(clock: Clockwork) -> None:
    schedule = clock.add()
    tick = clock.due(schedule)
    run_schedules(clock.runtime)
    clock.due(schedule, tick)
    run_schedules(clock.runtime)
    following = clock.get(schedule.id).next_at
    assert following is not None
    assert following > tick
    assert (clock.outcomes(schedule), clock.jobs()) == (["started"], 1)


def move(clock: Clockwork, schedule: Schedule, **times: Any) -> None:
    """As a PATCH does."""
    with clock.runtime.database.transaction() as tx:
        seen = schedules.get(tx, schedule.id, tenant_id=schedule.tenant_id, lock=True)
        wanted = replace(seen, **times)
        asked: dict[str, Any] = {"expression": wanted.cron, "timezone": wanted.timezone, "paused": wanted.paused}
        schedules.change(tx, seen.id, times | engine.moved(tx, clock.runtime, seen, **asked))


def test_a_time_that_has_come_is_kept_by_a_change_to_the_same(clock: Clockwork) -> None:
    schedule = clock.add()
    tick = clock.due(schedule)
    move(clock, schedule, cron=schedule.cron)
    assert clock.get(schedule.id).next_at == tick
    run_schedules(clock.runtime)
    assert [(run.tick_at, run.outcome) for run in clock.runs(schedule)] == [(tick, RunOutcome.STARTED)]


def test_a_time_that_has_come_starts_after_a_change_of_times(clock: Clockwork) -> None:
    schedule = clock.add()
    tick = clock.due(schedule)
    move(clock, schedule, cron="* * * * *", timezone="Europe/Berlin")
    (run,) = clock.runs(schedule)
    assert (run.tick_at, run.outcome) == (tick, RunOutcome.QUEUED)
    following = clock.get(schedule.id).next_at
    assert following is not None
    assert following > tick
    run_schedules(clock.runtime)
    assert clock.outcomes(schedule)[0] == "started"
    assert clock.runs(schedule)[0].tick_at == tick


def test_a_time_that_has_come_obeys_its_policies_at_a_change(clock: Clockwork) -> None:
    late, busy = clock.add("0 0 1 1 *", catch_up="skip"), clock.add()
    clock.due(late, clock.now() - 2 * HOUR)
    clock.due(busy)
    run_schedules(clock.runtime)
    clock.due(late, clock.now() - HOUR)
    clock.due(busy)
    for schedule in (late, busy):
        move(clock, schedule, cron="30 0 1 1 *")
    assert clock.outcomes(late) == ["skipped", "skipped"]
    assert clock.outcomes(busy) == ["started", "skipped"]
    assert "still live" in str(clock.runs(busy)[1].message)


def test_a_time_that_has_come_is_skipped_with_the_reason_when_its_schedule_is_paused(clock: Clockwork) -> None:
    schedule = clock.add()
    clock.due(schedule)
    move(clock, schedule, paused=True)
    (run,) = clock.runs(schedule)
    assert (run.outcome, clock.get(schedule.id).next_at) == (RunOutcome.SKIPPED, None)
    assert "paused" in str(run.message)


def test_what_was_queued_by_a_change_ends_with_the_next_time_where_that_cancels(clock: Clockwork) -> None:
    schedule = clock.add(overlap="cancel")
    clock.due(schedule)
    run_schedules(clock.runtime)
    clock.due(schedule)
    move(clock, schedule, cron="0 0 1 1 *")
    assert clock.outcomes(schedule) == ["started", "queued"]
    clock.due(schedule)
    assert run_schedules(clock.runtime) == 1
    assert clock.outcomes(schedule) == ["started", "skipped", "started"]
    assert "later time" in str(clock.runs(schedule)[1].message)


def test_missed_times_give_one_job_that_says_so(clock: Clockwork) -> None:
    schedule = clock.add()
    last = clock.now().replace(minute=0, second=0, microsecond=0)
    clock.due(schedule, last - 5 * HOUR)
    assert run_schedules(clock.runtime) == 1
    (run,) = clock.runs(schedule)
    assert (run.tick_at, run.missed, run.outcome) == (last, 5, RunOutcome.STARTED)
    assert run.message is not None
    assert run.message.endswith("missed while no scheduler ran.")
    assert clock.get(schedule.id).next_at == last + HOUR


def test_missed_times_may_be_skipped(clock: Clockwork) -> None:
    schedule = clock.add("0 0 1 1 *", catch_up="skip")
    clock.due(schedule, clock.now() - 2 * HOUR)
    assert run_schedules(clock.runtime) == 1
    (run,) = clock.runs(schedule)
    assert (run.outcome, run.job_id, run.message) == (RunOutcome.SKIPPED, None, "1 missed while no scheduler ran.")
    clock.due(schedule)
    run_schedules(clock.runtime)
    assert clock.outcomes(schedule) == ["skipped", "started"]


def test_overlap_skip(clock: Clockwork) -> None:
    schedule = clock.add()
    for expected in (["started"], ["started", "skipped"]):
        clock.due(schedule)
        run_schedules(clock.runtime)
        assert clock.outcomes(schedule) == expected
    assert "still live" in str(clock.runs(schedule)[1].message)
    clock.end(clock.runs(schedule)[0])
    clock.due(schedule)
    run_schedules(clock.runtime)
    assert clock.outcomes(schedule) == ["started", "skipped", "started"]


def test_overlap_queue_runs_one_after_the_other_in_order_and_within_bounds(make: Make) -> None:
    clock = Clockwork(make([finish()], schedule_queue=2))
    schedule = clock.add(overlap="queue")
    ticks = []
    for _ in range(4):
        ticks.append(clock.due(schedule))
        run_schedules(clock.runtime)
    assert clock.outcomes(schedule) == ["started", "queued", "queued", "skipped"]
    assert clock.jobs() == 1
    assert run_schedules(clock.runtime) == 0
    for n in (1, 2):
        clock.end(clock.runs(schedule)[n - 1])
        assert run_schedules(clock.runtime) == 1
        assert run_schedules(clock.runtime) == 0
        run = clock.runs(schedule)[n]
        assert (run.outcome, run.tick_at, clock.status(run)) == (RunOutcome.STARTED, ticks[n], JobStatus.QUEUED)
    assert clock.jobs() == 3


def test_of_two_schedulers_one_starts_what_was_queued(clock: Clockwork) -> None:
    schedule = clock.add(overlap="queue")
    for _ in range(3):
        clock.due(schedule)
        run_schedules(clock.runtime)
    clock.end(clock.runs(schedule)[0])
    start = threading.Barrier(4)

    def run() -> None:
        start.wait()
        run_schedules(clock.runtime)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(clock.outcomes(schedule)) == ["queued", "started", "started"]
    assert clock.jobs() == 2


def test_overlap_cancel(clock: Clockwork) -> None:
    schedule = clock.add(overlap="cancel")
    for _ in range(3):
        clock.due(schedule)
        run_schedules(clock.runtime)
    runs = clock.runs(schedule)
    assert [run.outcome for run in runs] == [RunOutcome.STARTED] * 3
    assert [clock.status(run) for run in runs] == [JobStatus.CANCELLED, JobStatus.CANCELLED, JobStatus.QUEUED]


def test_a_job_whose_row_is_held_is_cancelled_at_the_next_look(clock: Clockwork) -> None:
    schedule = clock.add(overlap="cancel")
    clock.due(schedule)
    run_schedules(clock.runtime)
    tick = clock.due(schedule)
    held = clock.runs(schedule)[0].job_id
    assert held is not None
    with clock.runtime.database.transaction() as tx:
        jobs.get(tx, held, lock=True)
        assert run_schedules(clock.runtime) == 0
    assert clock.get(schedule.id).next_at == tick
    clock.stepper.time_passes()
    assert run_schedules(clock.runtime) == 1
    assert clock.status(clock.runs(schedule)[0]) is JobStatus.CANCELLED


def test_what_can_not_be_submitted_fails_that_time_only(clock: Clockwork) -> None:
    schedule = clock.add(spec={"inputs": [{"file_id": new_id("file")}]})
    clock.due(schedule)
    assert run_schedules(clock.runtime) == 1
    (run,) = clock.runs(schedule)
    assert (run.outcome, run.job_id) == (RunOutcome.FAILED, None)
    assert "There is no file" in str(run.message)
    assert clock.get(schedule.id).next_at is not None


def test_an_outage_is_waited_out_and_one_schedule_does_not_keep_the_others_waiting(
    clock: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = clock.add(spec={"instructions": "first"}), clock.add()
    tick = clock.due(first)
    clock.due(second)
    real: Callable[..., Any] = intake.prepare

    def prepare(runtime: Any, *, tenant_id: str, spec: JobSpec) -> Any:
        if spec.instructions == "first":
            raise StorageUnavailable("down")
        return real(runtime, tenant_id=tenant_id, spec=spec)

    with monkeypatch.context() as patch:
        patch.setattr(intake, "prepare", prepare)
        assert run_schedules(clock.runtime) == 1
    assert (clock.runs(first), clock.get(first.id).next_at, clock.outcomes(second)) == ([], tick, ["started"])
    clock.stepper.time_passes()
    assert run_schedules(clock.runtime) == 1
    assert clock.outcomes(first) == ["started"]


def test_run_now_starts_at_once_and_once_under_a_key(clock: Clockwork) -> None:
    schedule = clock.add(paused=True)
    key = RequestKey.of(clock.stepper.tenant_id, "k", "run")
    first, again = engine.run_now(clock.runtime, schedule, key), engine.run_now(clock.runtime, schedule, key)
    assert (first[1], again[1], first[0]) == (True, False, again[0])
    assert (first[0].manual, first[0].outcome) == (True, RunOutcome.STARTED)
    assert clock.jobs() == 1
    assert engine.run_now(clock.runtime, schedule, None)[1]
    assert clock.jobs() == 2


def test_history_is_bounded_but_keeps_what_is_live(make: Make) -> None:
    clock = Clockwork(make([finish()], schedule_runs=3))
    schedule = clock.add(overlap="skip")
    for _ in range(8):
        clock.due(schedule)
        run_schedules(clock.runtime)
    assert clock.outcomes(schedule) == ["started", "skipped", "skipped", "skipped"]
