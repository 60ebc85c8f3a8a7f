"""Rings lost and repeated, workers overtaken, services away, rows damaged: nothing lost, nothing twice, nothing stuck."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from sqlalchemy import func, select, text, update

from dualtrack.db.engine import Database, Transaction
from dualtrack.db.tables import calls as calls_table
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.domain.errors import BrokerUnavailable, DatabaseUnavailable, UnknownModel
from dualtrack.domain.lifecycle import CallStatus, JobStatus
from dualtrack.domain.tool import ProposedCall
from dualtrack.domain.usage import Usage
from dualtrack.models.port import Decision, DecisionRequest
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.scripted_model import ScriptedModel

from .conftest import CountingSandbox, Make, finish, python, shell, types


def test_every_message_twice_does_nothing_twice(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([python("open('n','a').write('x')"), python("print(open('n').read())"), finish()])
    job = stepper.submit()
    for _ in range(40):
        if not stepper.doorbell.rings:
            break
        stepper.doorbell.rings.append(stepper.doorbell.rings[0])
        stepper.ring()
    assert stepper.job(job).status is JobStatus.SUCCEEDED
    assert len(sandbox.ran) == 2
    assert stepper.steps(job)[1].calls[0].preview.strip() == "x"
    assert types(stepper, job).count("call.finished") == 3


def test_every_message_lost_once_is_rung_again(make: Make) -> None:
    stepper = make([python("print(1)"), finish()])
    job = stepper.submit()
    for _ in range(20):
        if stepper.job(job).finished_at is not None:
            break
        stepper.doorbell.rings.clear()  # lost
        stepper.time_passes()
        assert stepper.scheduler.tick() == 1
        stepper.ring()
    assert stepper.job(job).status is JobStatus.SUCCEEDED


def test_a_broken_broker_stops_nothing_for_good(make: Make) -> None:
    stepper = make([python("print(1)"), finish()])
    stepper.doorbell.broken = True
    job = stepper.submit()
    assert not stepper.doorbell.rings
    stepper.time_passes()
    with pytest.raises(BrokerUnavailable):
        stepper.scheduler.tick()
    stepper.doorbell.broken = False
    assert stepper.run(job).status is JobStatus.SUCCEEDED


def test_a_planner_that_was_overtaken_writes_nothing(make: Make) -> None:
    """The first attempt is frozen inside the model call; a second one decides; then the first wakes up."""
    taken_over = False

    def freeze(_: object) -> None:
        nonlocal taken_over
        if not taken_over:
            taken_over = True
            stepper.leases_run_out()
            stepper.planner.advance(job.id)

    model = ScriptedModel([python("print(1)"), finish()], on_decide=freeze)
    stepper = make(model)
    job = stepper.submit()
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert [step.number for step in stepper.steps(job)] == [1, 2]
    assert types(stepper, job).count("step.decided") == 2


def test_an_executor_that_was_overtaken_writes_nothing(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([python("open('n','a').write('x'); print(open('n').read())"), finish()])
    job = stepper.submit()

    def freeze() -> None:
        sandbox.before = None
        stepper.leases_run_out()
        with stepper.runtime.database.transaction() as tx:
            call_id = tx.connection.execute(select(calls_table.c.id)).scalar_one()
            tx.connection.execute(
                update(calls_table).values(attempt=calls_table.c.attempt + 1, owner=None, lease_until=None, status="pending")
            )
        late.append(call_id)

    late: list[str] = []
    sandbox.before = freeze
    stepper.ring()
    stepper.ring()
    assert stepper.steps(job)[0].calls[0].status is CallStatus.PENDING  # the overtaken attempt's result was dropped
    stepper.doorbell.rings.append(("execute", late[0]))
    job = stepper.run(job)
    assert job.status is JobStatus.SUCCEEDED
    assert stepper.steps(job)[0].calls[0].preview.strip() == "x"  # run again from the snapshot before it, not on top of the first try
    assert types(stepper, job).count("call.finished") == 2


def test_a_failing_sandbox_is_retried_and_never_shown_to_the_model(make: Make, sandbox: CountingSandbox) -> None:
    model = ScriptedModel([shell("echo fine"), finish()])
    stepper = make(model)
    sandbox.failures = 2
    job = stepper.run(stepper.submit())
    assert job.status is JobStatus.SUCCEEDED
    assert types(stepper, job).count("call.retrying") == 2
    assert "the test says so" not in str(model.requests)


def test_a_sandbox_that_never_works_ends_the_job_with_its_reason(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([shell("true")], attempts=3)
    sandbox.failures = 100
    job = stepper.run(stepper.submit())
    assert (job.status, job.reason) == (JobStatus.FAILED, "sandbox_failed")
    assert len(sandbox.ran) == 3
    assert stepper.steps(job)[0].calls[0].status is CallStatus.CANCELLED


def test_storage_that_is_away_is_retried(make: Make, store: MemoryStore, sandbox: CountingSandbox) -> None:
    stepper = make([shell("touch a"), finish()])
    job = stepper.submit()
    stepper.ring()
    store.unavailable = True
    stepper.ring()
    assert "call.retrying" in types(stepper, job)
    store.unavailable = False
    assert stepper.run(job).status is JobStatus.SUCCEEDED


def test_a_passing_model_failure_is_retried_and_a_lasting_one_ends_the_job(make: Make) -> None:
    stepper = make([{"error": "rate_limited", "times": 2, **finish()}])
    job = stepper.run(stepper.submit())
    assert job.status is JobStatus.SUCCEEDED
    assert types(stepper, job).count("step.retrying") == 2

    stepper = make([{"error": "refused"}])
    job = stepper.run(stepper.submit("refused"))
    assert (job.status, job.reason) == (JobStatus.FAILED, "model_request_refused")


def test_an_outage_of_the_provider_is_waited_out_until_the_job_s_time_is_over(make: Make, database: Database) -> None:
    stepper = make([{"error": "server_error", "times": 30, **finish("back")}])
    job = stepper.run(stepper.submit())
    assert (job.status, job.answer) == (JobStatus.SUCCEEDED, "back")
    assert types(stepper, job).count("step.retrying") == 30

    stepper = make([{"error": "server_error"}])
    job = stepper.submit("never back", limits={"on_limit": "fail"})
    for _ in range(20):
        stepper.ring()
        stepper.time_passes()
        stepper.scheduler.tick()
    assert stepper.job(job).status is JobStatus.RUNNING
    with database.transaction() as tx:
        tx.connection.execute(update(jobs_table).where(jobs_table.c.id == job.id).values(deadline_at=func.now()))
    assert stepper.run(job).reason == "limit_wall_time"


def test_rings_during_a_pause_do_not_use_up_the_attempts(make: Make, store: MemoryStore) -> None:
    stepper = make([{"error": "rate_limited", "times": 2, **shell("touch a")}, finish()], backoff_s=30)
    job = stepper.submit()
    for _ in range(6):
        stepper.doorbell.rings.append(("plan", job.id))
    while stepper.ring():
        pass
    assert types(stepper, job).count("step.retrying") == 1
    stepper.time_passes()
    stepper.scheduler.tick()
    stepper.ring()
    stepper.time_passes()
    stepper.scheduler.tick()
    store.unavailable = True
    stepper.ring()
    assert len(stepper.doorbell.rings) == 1
    stepper.doorbell.rings.extend([stepper.doorbell.rings[0]] * 6)
    while stepper.ring():
        pass
    assert types(stepper, job).count("call.retrying") == 1
    store.unavailable = False
    assert stepper.run(job).status is JobStatus.SUCCEEDED


def test_a_job_that_a_newer_release_wrote_more_into_is_still_done(make: Make, database: Database) -> None:
    stepper = make([finish()])
    job = stepper.submit()
    with database.transaction() as tx:
        more = text("""spec || '{"new_field": 1}' || jsonb_build_object('limits', spec->'limits' || '{"newer": 2}')""")
        tx.connection.execute(update(jobs_table).values(spec=more))
    assert stepper.run(job).status is JobStatus.SUCCEEDED


def test_one_bad_job_keeps_no_other_waiting_and_ends(make: Make, database: Database) -> None:
    stepper = make([finish()])
    bad, late, good = stepper.submit("bad"), stepper.submit("late"), stepper.submit("good")
    stepper.doorbell.rings.clear()
    with database.transaction() as tx:
        for job, more in ((bad, {}), (late, {"deadline_at": func.now()})):
            tx.connection.execute(update(jobs_table).where(jobs_table.c.id == job.id).values(spec={}, **more))
    stepper.time_passes()
    stepper.scheduler.tick()
    while stepper.ring():
        pass
    assert stepper.job(good).status is JobStatus.SUCCEEDED
    with database.transaction() as tx:
        found = tx.connection.execute(select(jobs_table.c.status, jobs_table.c.reason).where(jobs_table.c.id.in_([bad.id, late.id]))).all()
    assert set(found) == {("failed", "record_unreadable")}
    assert len(found) == 2
    assert types(stepper, bad)[-1] == "job.failed"


def test_a_locked_row_keeps_no_other_waiting(make: Make, database: Database) -> None:
    stepper = make([finish()])
    locked, good = stepper.submit("locked", limits={"on_limit": "fail"}), stepper.submit("good")
    stepper.doorbell.rings.clear()
    with database.transaction() as tx:
        tx.connection.execute(update(jobs_table).where(jobs_table.c.id == locked.id).values(deadline_at=func.now()))
    stepper.time_passes()
    with database.transaction() as holder:
        from dualtrack.db import jobs

        jobs.get(holder, locked.id, lock=True)
        stepper.scheduler.tick()
        assert ("plan", good.id) in stepper.doorbell.rings
    stepper.scheduler.tick()
    assert stepper.job(locked).status is JobStatus.EXPIRED


def test_waiting_jobs_are_not_rung_into_a_queue_that_is_long_already(make: Make) -> None:
    stepper = make([finish()])
    for n in range(30):
        stepper.submit(str(n))
    for _ in range(40):
        stepper.time_passes()
        stepper.scheduler.tick()
    assert len(stepper.doorbell.rings) <= 500 + 30


class OneAnswer(ScriptedModel):
    """Always decides the same calls, or raises."""

    def __init__(self, answer: Exception | tuple[ProposedCall, ...]) -> None:
        super().__init__()
        self.answer = answer

    def decide(self, request: DecisionRequest) -> Decision:
        self.requests.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return Decision("", "", self.answer, "raw", Usage(100, 10), 0.0)


@pytest.mark.parametrize(
    ("answer", "reason", "asked"),
    [
        (UnknownModel("gone from the configuration"), "model_not_found", 1),
        (ValueError("a bug"), "internal_fault", 5),
        (RecursionError("deep"), "internal_fault", 5),
    ],
)
def test_a_failure_that_nobody_expected_is_written_down_and_ends_the_job(make: Make, answer: Exception, reason: str, asked: int) -> None:
    model = OneAnswer(answer)
    stepper = make(model)
    job = stepper.run(stepper.submit())
    assert (job.status, job.reason, len(model.requests)) == (JobStatus.FAILED, reason, asked)
    assert types(stepper, job).count("step.retrying") == asked - 1


def test_a_decision_that_can_not_be_written_is_paid_for_all_the_same(make: Make) -> None:
    stepper = make(OneAnswer((ProposedCall("shell", {"command": "true", "timeout_s": float("nan")}),)))
    job = stepper.run(stepper.submit(limits={"tokens": 150, "on_limit": "fail"}))
    assert job.status is JobStatus.FAILED
    assert job.usage.total_tokens >= 110


def test_a_commit_whose_answer_was_lost_is_neither_repeated_nor_paid_twice(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[None] = []

    def losing(real: Callable[..., AbstractContextManager[Transaction]]) -> Callable[..., AbstractContextManager[Transaction]]:
        @contextmanager
        def lost(self: Database, *, vital: bool = False) -> Iterator[Transaction]:
            with real(self, **({"vital": True} if vital else {})) as tx:
                yield tx
            if left and not vital:
                left.clear()
                raise DatabaseUnavailable("The answer to the commit was lost.")

        return lost

    for name in ("transaction", "statements"):
        monkeypatch.setattr(Database, name, losing(getattr(Database, name)))
    model = ScriptedModel([python("print(1)"), finish()], on_decide=lambda _: left.append(None))
    stepper = make(model)
    job = stepper.submit()
    ended = stepper.run(job)
    assert ended.status is JobStatus.SUCCEEDED
    assert types(stepper, job).count("step.decided") == 2
    assert "step.dropped" not in types(stepper, job)
    assert ended.usage.total_tokens == sum(step.usage.total_tokens for step in stepper.steps(job))


def test_failures_that_decisions_came_between_do_not_add_up(make: Make) -> None:
    seen = []

    def every_other_fails(_: DecisionRequest) -> None:
        seen.append(1)
        if len(seen) % 2:
            raise KeyError("a fault of ours")

    plan = {"tool": "update_plan", "arguments": {"steps": [{"title": "go on", "status": "pending"}]}}
    stepper = make(ScriptedModel([plan, plan, plan, plan, finish()], on_decide=every_other_fails), attempts=3)
    job = stepper.run(stepper.submit())
    assert job.status is JobStatus.SUCCEEDED
    assert types(stepper, job).count("step.retrying") == 5
