"""A redelivered message makes good what a dead worker committed and never rang for, and nothing else."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, update

from dualtrack.db import claims
from dualtrack.db.idempotency import RequestKey
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.domain.errors import DatabaseUnavailable
from dualtrack.domain.job import JobSpec
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.engine import children, intake
from dualtrack.engine.redelivery import Redelivery
from dualtrack.queues.port import Task
from dualtrack.testing.model_script import Script
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.work import Work

from .conftest import Make, finish, shell, types

READ = {"tool": "list_files", "arguments": {}}


def test_calls_that_were_decided_and_never_rung_for(make: Make) -> None:
    stepper = make([{"calls": [READ, READ, shell("true")]}, finish()])
    job = stepper.submit()
    stepper.ring()
    stepper.doorbell.rings.clear()  # the planner died after its commit
    Redelivery(stepper.runtime, Task.PLAN).ring(job.id)
    calls = stepper.steps(job)[0].calls
    assert sorted(stepper.doorbell.rings) == sorted(("execute", call.id) for call in calls[:2])  # the third is of the next wave
    assert stepper.run(job).status is JobStatus.SUCCEEDED


def test_a_job_whose_last_call_was_recorded_and_that_was_never_rung_for(make: Make) -> None:
    stepper = make([shell("true"), finish()])
    job = stepper.submit()
    stepper.ring()
    stepper.ring()
    stepper.doorbell.rings.clear()  # the executor died after its commit
    Redelivery(stepper.runtime, Task.EXECUTE).ring(stepper.steps(job)[0].calls[0].id)
    assert list(stepper.doorbell.rings) == [("plan", job.id)]


def test_children_that_were_started_and_never_rung_for_and_their_ends_that_were_never_told(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = {"tool": "delegate", "arguments": {"instructions": "part"}}
    scripts = {"whole": [{"calls": [part, part]}, finish("whole")], "part": [finish("part")]}
    stepper = make(ScriptedModel(lambda request: Script.model_validate(scripts[request.task.split()[0]])))
    job = stepper.submit("whole", agent={"tools": ["delegate", "finish"]})
    stepper.ring()
    again = Redelivery(stepper.runtime, Task.PLAN)
    rung = set(stepper.doorbell.rings)
    assert len(rung) == 2
    stepper.doorbell.rings.clear()  # the planner died after its commit
    again.ring(job.id)
    assert set(stepper.doorbell.rings) == rung
    first, second = (child_id for _, child_id in sorted(rung))
    stepper.doorbell.rings.clear()
    with monkeypatch.context() as crash:
        crash.setattr(children, "tell_parent", lambda *_: None)  # the planner died after the first child's last commit
        stepper.planner.advance(first)
    again.ring(first)
    assert types(stepper, job).count("call.finished") == 1
    assert list(stepper.doorbell.rings) == [("plan", second)]
    stepper.planner.advance(second)
    stepper.doorbell.rings.clear()  # the planner told of the second's end, and died before it rang for the parent
    again.ring(second)
    assert list(stepper.doorbell.rings) == [("plan", job.id)]
    assert stepper.run(job).answer == "whole"


def test_what_the_message_itself_rings_for_what_somebody_has_and_what_pauses_is_left_alone(make: Make) -> None:
    stepper = make([{"calls": [READ, READ]}, finish()], backoff_s=60.0)
    job = stepper.submit()
    again = Redelivery(stepper.runtime, Task.PLAN)
    stepper.doorbell.rings.clear()
    again.ring(job.id)
    assert list(stepper.doorbell.rings) == []
    stepper.planner.advance(job.id)
    first, second = (call.id for call in stepper.steps(job)[0].calls)
    stepper.doorbell.rings.clear()
    Redelivery(stepper.runtime, Task.EXECUTE).ring(first)
    assert list(stepper.doorbell.rings) == [("execute", second)]


def test_a_broker_that_is_away_and_a_row_that_is_gone_are_no_error(make: Make) -> None:
    stepper = make([shell("true"), finish()])
    job = stepper.submit()
    stepper.ring()
    stepper.doorbell.broken = True
    Redelivery(stepper.runtime, Task.PLAN).ring(job.id)
    Redelivery(stepper.runtime, Task.EXECUTE).ring("call_gone")


def test_a_submission_that_is_repeated_rings_again_until_somebody_began(make: Make) -> None:
    """Whoever accepted it may have died before ringing."""
    stepper = make([shell("true"), finish()])
    spec, once = JobSpec(instructions="once"), RequestKey.of(stepper.tenant_id, "key", "/v1/jobs", b"body")
    job, new = intake.submit(stepper.runtime, tenant_id=stepper.tenant_id, spec=spec, once=once)
    stepper.doorbell.rings.clear()
    assert new
    assert intake.submit(stepper.runtime, tenant_id=stepper.tenant_id, spec=spec, once=once)[1] is False
    assert list(stepper.doorbell.rings) == [("plan", job.id)]
    stepper.ring()
    stepper.doorbell.rings.clear()
    intake.submit(stepper.runtime, tenant_id=stepper.tenant_id, spec=spec, once=once)
    assert list(stepper.doorbell.rings) == []


def test_a_commit_whose_answer_is_lost_is_neither_repeated_nor_charged_twice(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    stepper = make([shell("echo 1 >> log"), shell("cat log"), finish()])
    record, calls = stepper.planner._record, []

    def record_and_lose_the_answer(*arguments: Any) -> Work[None]:
        yield from record(*arguments)
        calls.append(arguments)
        if len(calls) == 1:
            raise DatabaseUnavailable("the connection broke during the commit")

    monkeypatch.setattr(stepper.planner, "_record", record_and_lose_the_answer)
    job = stepper.run(stepper.submit())
    assert job.status is JobStatus.SUCCEEDED
    assert types(stepper, job).count("step.decided") == 3
    assert "step.dropped" not in types(stepper, job)
    assert job.usage.total_tokens == sum(step.usage.total_tokens for step in stepper.steps(job))


def test_a_claim_that_this_process_took_from_itself_is_lost_all_the_same(make: Make) -> None:
    stepper = make([finish()])
    job = stepper.submit()
    database, key, limits = stepper.runtime.database, stepper.presence.key, stepper.runtime.limits
    with database.transaction() as tx:
        tx.connection.execute(update(jobs_table).values(attempt=1))
        assert claims.claim(tx, "jobs", job.id, key, limits) is not None
    with stepper.leases.hold("jobs", job.id, 1) as old, stepper.leases.hold("jobs", job.id, 2) as new:
        stepper.leases.renew()
        assert (old.lost, old.cancel.is_set()) == (True, True)
        assert (new.lost, new.cancel.is_set()) == (False, False)


def test_a_claim_whose_answer_was_lost_is_let_go_of_and_one_on_its_way_to_a_thread_is_not(make: Make) -> None:
    stepper = make([finish()])
    job = stepper.submit()
    database, key, limits = stepper.runtime.database, stepper.presence.key, stepper.runtime.limits
    with database.transaction() as tx:
        assert claims.claim(tx, "jobs", job.id, key, limits) is not None

    def free() -> list[str]:
        with database.transaction() as tx:
            return [row.id for row in claims.free_orphans(tx, "jobs")]

    stepper.leases.renew()
    assert free() == []  # it may be on its way
    ago = func.clock_timestamp() + timedelta(seconds=limits.lease_s - claims.UNHELD_S - 1)
    with stepper.leases.hold("jobs", job.id, 1):
        with database.transaction() as tx:
            tx.connection.execute(update(jobs_table).values(lease_until=ago))
        stepper.leases.renew()
        assert free() == []
    with database.transaction() as tx:
        tx.connection.execute(update(jobs_table).values(lease_until=ago))
    stepper.leases.renew()
    assert free() == [job.id]
    assert stepper.run(job).status is JobStatus.SUCCEEDED
