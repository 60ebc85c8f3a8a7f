"""What an approval lets through: the call that was asked for, its arguments and its job, once, whatever crashes or is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import select, text, update

from dualtrack.db import jobs
from dualtrack.db.engine import Database
from dualtrack.db.tables import calls as calls_table
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.domain.approval import arguments_sha256
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.engine import flow
from dualtrack.models.port import DecisionRequest
from dualtrack.testing.approvals import ASK_SHELL, asked, decisions, settle_down, submit
from dualtrack.testing.model_script import Script
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.testing.stepper import Stepper

from .conftest import CountingSandbox, Make, finish, shell, types


@pytest.mark.parametrize("change", [{"arguments": {"command": "echo other"}}, {"tool": "execute_python"}])
def test_an_approval_lets_nothing_else_through(make: Make, sandbox: CountingSandbox, database: Database, change: dict[str, Any]) -> None:
    """Whatever might change a call after its approval: it does not run."""
    stepper = make([shell("echo x"), finish()])
    job = submit(stepper)
    decisions(stepper).approve(asked(stepper, job)[0].id)
    with database.transaction() as tx:
        tx.connection.execute(update(calls_table).where(calls_table.c.guarded).values(change))
    ended = stepper.run(job)
    assert (ended.status, ended.reason) == (JobStatus.FAILED, "not_approved")
    assert sandbox.ran == []


DELEGATE = {"tool": "delegate", "arguments": {"instructions": "part one"}}
DELEGATING = {
    "tools": ["delegate", "shell", "finish"],
    "policies": [{"tool": "delegate", "action": "ask"}, {"tool": "shell", "action": "ask"}],
}


def children_of(stepper: Stepper, job: Job) -> list[str]:
    with stepper.runtime.database.transaction() as tx:
        return list(tx.connection.execute(select(jobs_table.c.id).where(jobs_table.c.parent_id == job.id)).scalars())


def test_a_child_is_started_once_it_is_approved_and_keeps_the_parents_policies(make: Make, sandbox: CountingSandbox) -> None:
    def script(request: DecisionRequest) -> Script:
        steps = [shell("echo child"), finish()] if "part one" in request.task else [DELEGATE, finish()]
        return Script.model_validate(steps)

    stepper = make(ScriptedModel(script))
    job = submit(stepper, DELEGATING)
    assert (job.status, job.reason, children_of(stepper, job)) == (JobStatus.WAITING, "approval", [])
    by = decisions(stepper)
    by.approve(asked(stepper, job)[0].id)
    settle_down(stepper)
    (child,) = children_of(stepper, job)
    with stepper.runtime.database.transaction() as tx:
        found = jobs.get(tx, child)
    assert (found.status, found.reason, sandbox.ran) == (JobStatus.WAITING, "approval", [])
    by.approve(asked(stepper, found)[0].id)
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert len(sandbox.ran) == 1


def test_a_child_that_nobody_approved_is_not_started(make: Make, database: Database) -> None:
    stepper = make([DELEGATE, finish()])
    job = submit(stepper, DELEGATING)
    with database.transaction() as tx:
        tx.connection.execute(update(calls_table).where(calls_table.c.guarded).values(held=None))
        flow.go_on(tx, stepper.runtime, jobs.get(tx, job.id, lock=True))
    assert children_of(stepper, job) == []
    assert "needs an approval" in stepper.steps(job)[0].calls[0].preview


def test_a_held_call_that_is_let_go_without_a_decision_does_not_run(make: Make, sandbox: CountingSandbox, database: Database) -> None:
    stepper = make([shell("echo x"), finish()])
    job = submit(stepper)
    with database.transaction() as tx:
        tx.connection.execute(update(calls_table).where(calls_table.c.guarded).values(held=None))
        flow.go_on(tx, stepper.runtime, jobs.get(tx, job.id, lock=True))
    settle_down(stepper)
    assert (stepper.job(job).reason, sandbox.ran) == ("not_approved", [])


def test_an_approved_call_runs_again_after_a_crash_under_the_same_approval(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([shell("echo x"), finish()])
    job = submit(stepper)
    decisions(stepper).approve(asked(stepper, job)[0].id)
    sandbox.failures = 1
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert len(sandbox.ran) == 2
    assert types(stepper, job).count("approval.requested") == 1


def test_the_same_call_again_needs_its_own_approval_also_after_compaction(make: Make, sandbox: CountingSandbox) -> None:
    """The first answer is too long for the context of the second step: it is compacted before the same call comes again."""
    long = shell("head -c 3000 /dev/zero | tr '\\0' x")
    stepper = make(
        [long, {"error": "context_too_long", "times": 1, **long}, long, {"error": "context_too_long", "times": 1, **long}, finish()]
    )
    job = submit(stepper)
    by = decisions(stepper)
    for times in range(1, 5):
        (request,) = asked(stepper, job)
        assert len(sandbox.ran) == times - 1
        by.approve(request.id)
        for _ in range(3):
            settle_down(stepper)
            stepper.time_passes()
            stepper.scheduler.tick()
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert len(sandbox.ran) == 4
    assert types(stepper, job).count("context.compacted") >= 1
    assert types(stepper, job).count("approval.requested") == 4


def test_an_approval_whose_ring_is_lost_is_carried_out_all_the_same(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([shell("echo x"), finish()])
    job = submit(stepper)
    stepper.doorbell.broken = True
    decisions(stepper).approve(asked(stepper, job)[0].id)
    stepper.doorbell.broken = False
    assert not stepper.doorbell.rings
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert len(sandbox.ran) == 1


def test_every_ring_twice_runs_an_approved_call_once(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([shell("echo x"), finish()])
    job = stepper.submit(agent=ASK_SHELL)
    stepper.doorbell.rings.extend(list(stepper.doorbell.rings))
    settle_down(stepper)
    decisions(stepper).approve(asked(stepper, job)[0].id)
    stepper.doorbell.rings.extend(list(stepper.doorbell.rings))
    settle_down(stepper)
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert len(sandbox.ran) == 1
    assert types(stepper, job).count("call.started") == 1


def test_the_database_keeps_the_hash(database: Database) -> None:
    numbers = [
        0,
        -0.0,
        1.0,
        1.5,
        1e2,
        1e16,
        1e22,
        1e23,
        1.7976931348623157e308,
        5e-324,
        1e-7,
        2**70,
        -3,
        True,
        None,
        "1",
        0.1,
        123456789.125,
    ]
    arguments = {f"k{n}": value for n, value in enumerate(numbers)} | {"ü": [{"b": 1, "a": "\u2028"}]}
    with database.transaction() as tx:
        kept = tx.connection.execute(text("SELECT CAST(:value AS jsonb)"), {"value": json.dumps(arguments)}).scalar_one()
    assert arguments_sha256(kept) == arguments_sha256(arguments)


def test_numbers_keep_their_hash_through_the_database(make: Make) -> None:
    odd = {"command": "echo x", "timeout_s": 1e2}
    stepper = make([{"tool": "shell", "arguments": odd}, finish()])
    job = submit(stepper)
    (request,) = asked(stepper, job)
    assert request.arguments_sha256 == arguments_sha256(odd) == arguments_sha256(request.arguments)
    decisions(stepper).approve(request.id)
    assert stepper.run(job).status is JobStatus.SUCCEEDED
