"""The usual case in one statement writes what the general way writes, and is taken in the usual case only."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import select

from dualtrack.db import approvals, claims, events, jobs, steps, tenants, usual_calls, usual_plans, webhooks
from dualtrack.db.engine import Transaction
from dualtrack.db.prepared import NOW
from dualtrack.db.rows import call_of, job_of
from dualtrack.db.tables import api_keys, key_usage
from dualtrack.db.tables import calls as calls_table
from dualtrack.db.tables import events as events_table
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.db.tables import steps as steps_table
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import CallStatus, JobStatus, Phase
from dualtrack.domain.usage import Usage
from dualtrack.domain.waiting import Hold
from dualtrack.domain.webhook import NoticeType
from dualtrack.engine import ending, flow
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.testing.stepper import Stepper

from .conftest import CountingSandbox, Make, finish, python, shell, types

_TIMES = {"created_at", "started_at", "finished_at", "due_at", "lease_until", "deadline_at", "at", "latency_s", "not_before"}
_ITS_OWN = {"traceparent", "request_traceparent", "owner", "key_id"}
SCRIPT: list[Any] = [
    python("open('a.txt','w').write('1')"),
    {"calls": [shell("cat a.txt"), {"tool": "list_files", "arguments": {}}, {"tool": "read_file", "arguments": {"path": "a.txt"}}]},
    {"calls": [{"tool": "nothing_like_it", "arguments": {}}, {"tool": "list_files", "arguments": {}}]},
    {"tool": "update_plan", "arguments": {"steps": [{"title": "t", "status": "pending"}]}},
    shell("exit 3"),
    {"tool": "save_artifact", "arguments": {"path": "a.txt"}},
    finish("done"),
]


STATEMENTS: list[tuple[Any, str, Callable[[], Any]]] = [
    (usual_plans, "claim", dict),
    (usual_plans, "record", dict),
    (usual_calls, "begin", dict),
    (usual_calls, "finish", set),
]


def general_way_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, nothing in STATEMENTS:
        monkeypatch.setattr(module, name, lambda *_, nothing=nothing, **__: nothing())


def written(stepper: Stepper, job: Job) -> str:
    """All rows of a job but for times and what names one run; ids in the order of their appearance."""
    found = []
    with stepper.runtime.database.transaction() as tx:
        for table, of_job, order in (
            (jobs_table, jobs_table.c.id, [jobs_table.c.id]),
            (steps_table, steps_table.c.job_id, [steps_table.c.number]),
            (calls_table, calls_table.c.job_id, [calls_table.c.step, calls_table.c.position]),
            (events_table, events_table.c.job_id, [events_table.c.seq]),
        ):
            for row in tx.connection.execute(select(table).where(of_job == job.id).order_by(*order)).mappings():
                times = {name: row[name] is None for name in row if name in _TIMES}
                found.append(f"{table.name} {times} { {name: row[name] for name in row if name not in _TIMES | _ITS_OWN} }")
    text = re.sub(r"'wall_s': [0-9.e-]+|'latency_s': [0-9.e-]+", "", "\n".join(found))
    ids: dict[str, str] = {}
    return re.sub(r"\b(?:job|call|art|evt)_[0-9A-Za-z]+", lambda match: ids.setdefault(match[0], f"id{len(ids)}"), text)


def count(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often each statement has done something."""
    taken = dict.fromkeys((name for _, name, _ in STATEMENTS), 0)

    def counted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **more: Any) -> Any:
            result = original(*arguments, **more)
            taken[name] += len(result)
            return result

        return run

    for module, name, _ in STATEMENTS:
        monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
    return taken


@pytest.mark.parametrize("keyed", [False, True])
def test_both_ways_write_the_same(make: Make, monkeypatch: pytest.MonkeyPatch, keyed: bool) -> None:
    seen = []
    for general in (False, True):
        with monkeypatch.context() as patch:
            if general:
                general_way_only(patch)
            taken = count(patch)
            stepper = make(ScriptedModel(list(SCRIPT)))
            job = stepper.submit("the same")
            if keyed:
                with stepper.runtime.database.transaction() as tx:
                    tenants.create_key(tx, stepper.tenant_id, f"key-{general}")
                    key_id = tx.connection.execute(select(api_keys.c.id).where(api_keys.c.name == f"key-{general}")).scalar_one()
                    jobs.change(tx, job.id, {"key_id": key_id})
            job = stepper.run(job)
            assert job.status is JobStatus.SUCCEEDED
            assert all(taken.values()) is not general
            seen.append(written(stepper, job))
            if keyed:
                with stepper.runtime.database.transaction() as tx:
                    used = tx.connection.execute(select(key_usage.c.input_tokens).where(key_usage.c.key_id == key_id)).scalars()
                    assert sum(used) == job.usage.input_tokens > 0
    assert seen[0] == seen[1]


def at_a_pending_call(make: Make) -> tuple[Stepper, Job, str]:
    stepper = make(ScriptedModel([shell("true"), finish()]))
    job = stepper.submit()
    stepper.ring()
    (call,) = stepper.steps(job)[0].calls
    assert call.status is CallStatus.PENDING
    return stepper, job, call.id


@pytest.mark.parametrize(
    "values",
    [
        {"stopping": "cancelled"},
        {"hold": "paused"},
    ],
)
def test_a_call_of_a_job_that_is_asked_for_something_is_not_begun_at_once(make: Make, values: dict[str, Any]) -> None:
    stepper, job, call_id = at_a_pending_call(make)
    with stepper.runtime.database.transaction() as tx:
        jobs.change(tx, job.id, values)
        assert not usual_calls.begin(tx, [call_id], 1, stepper.runtime.limits)


@pytest.mark.parametrize("values", [{"guarded": True}, {"held": "approval", "due_at": None}, {"tries": 1}, {"due_at": None}])
def test_a_call_with_something_about_it_is_not_begun_at_once(make: Make, values: dict[str, Any]) -> None:
    stepper, job, call_id = at_a_pending_call(make)
    before = stepper.job(job).last_seq
    with stepper.runtime.database.transaction() as tx:
        tx.connection.execute(calls_table.update().where(calls_table.c.id == call_id).values(values))
        assert not usual_calls.begin(tx, [call_id], 1, stepper.runtime.limits)
    assert stepper.job(job).last_seq == before


def test_a_second_claim_finds_nothing_to_begin(make: Make) -> None:
    stepper, job, call_id = at_a_pending_call(make)
    for expected in (True, False):
        with stepper.runtime.database.transaction() as tx:
            assert bool(usual_calls.begin(tx, [call_id], 1, stepper.runtime.limits)) is expected
    assert [event.type.value for event in stepper.events(job)].count("call.started") == 1


@pytest.mark.parametrize("asked", ["cancel", "pause"])
def test_what_a_job_is_asked_while_its_call_runs_is_seen_at_the_end(make: Make, sandbox: CountingSandbox, asked: str) -> None:
    stepper, job, _ = at_a_pending_call(make)

    def ask() -> None:
        with stepper.runtime.database.transaction() as tx:
            now = jobs.get(tx, job.id, lock=True)
            if asked == "cancel":
                ending.request_stop(tx, now, JobStatus.CANCELLED, by="test")
            else:
                flow.hold(tx, stepper.runtime, now, Hold.PAUSED, by="test")

    sandbox.before = ask
    stepper.ring()
    assert stepper.job(job).status is (JobStatus.CANCELLED if asked == "cancel" else JobStatus.WAITING)


def test_calls_of_many_jobs_and_of_one_begin_and_end_together(make: Make) -> None:
    pure = {"calls": [{"tool": "list_files", "arguments": {}}, {"tool": "read_file", "arguments": {"path": "a"}}]}
    stepper = make(ScriptedModel([pure, finish()]))
    listed = [stepper.submit() for _ in range(3)]
    for _ in listed:
        stepper.ring()
    ids = [row_id for task, row_id in stepper.doorbell.rings if task == "execute"]
    assert len(ids) == 6
    with stepper.runtime.database.statements() as tx:
        begun = usual_calls.begin(tx, [*ids, "call_unknown"], stepper.presence.key, stepper.runtime.limits)
    assert sorted(begun) == sorted(ids)
    assert {each.job.id for each in begun.values()} == {job.id for job in listed}
    for job in listed:
        found = stepper.events(job)
        assert [event.seq for event in found] == list(range(1, len(found) + 1))
        started = [event.data["call_id"] for event in found if event.type.value == "call.started"]
        assert started == [call.id for call in stepper.steps(job)[0].calls]
    ended = [
        usual_calls.Ended(
            call_of(each.call),
            usual_calls.Outcome(True, f"of {each.call.id}", None, {"exit": 0}, "digest", changes_workspace=True),
            NewEvent(EventType.CALL_FINISHED, {"call_id": each.call.id}),
        )
        for each in begun.values()
    ]
    with stepper.runtime.database.statements() as tx:
        assert usual_calls.finish(tx, ended, ring_s=1) == set()  # of two that end at once, neither is the only one that is open
    last = stepper.steps(listed[2])[0].calls[1]
    with stepper.runtime.database.transaction() as tx:
        jobs.get(tx, last.job_id, lock=True)
        steps.settle(tx, stepper.steps(listed[2])[0].calls[0].id, 1, {"status": "succeeded", "ok": True})
    with stepper.runtime.database.statements() as tx:
        assert usual_calls.finish(tx, ended, ring_s=1) == {(last.id, 1)}
    job = stepper.job(listed[2])
    assert (job.phase, job.workspace) == (Phase.PLAN, "digest")
    assert stepper.steps(job)[0].calls[1].preview == f"of {last.id}"
    assert stepper.events(job)[-1].data == {"call_id": last.id}


def claim(stepper: Stepper, *ids: str) -> dict[str, usual_plans.Claimed]:
    with stepper.runtime.database.statements() as tx:
        return usual_plans.claim(tx, ids, stepper.presence.key, stepper.runtime.limits)


def after_a_step(make: Make, *answers: Any, **spec: Any) -> tuple[Stepper, Job]:
    stepper = make(ScriptedModel([shell("true"), *answers]))
    job = stepper.submit(**spec)
    stepper.ring()
    stepper.ring()
    assert stepper.job(job).phase is Phase.PLAN
    return stepper, job


def test_a_claim_brings_the_last_step_and_is_given_back_without_a_trace(make: Make) -> None:
    stepper, job = after_a_step(make, finish())
    before = stepper.job(job)
    found = claim(stepper, job.id)[job.id]
    assert (found.job.attempt, found.step.number, [call.preview for call in found.calls]) == (
        before.attempt + 1,
        1,
        [call.preview for call in stepper.steps(job)[0].calls],
    )
    assert claim(stepper, job.id) == {}
    with stepper.runtime.database.transaction() as tx:
        claims.give_back(tx, "jobs", job.id, found.job.attempt)
    assert stepper.job(job) == before
    assert stepper.run(job).status is JobStatus.SUCCEEDED


@pytest.mark.parametrize(
    "values",
    [
        {"stopping": "cancelled"},
        {"hold": "paused"},
        {"tries": 1},
        {"messages": 1},
        {"phase": "execute"},
        {"owner": 1, "lease_until": NOW},
        {"not_before": NOW},
    ],
)
def test_a_job_with_something_about_it_is_not_claimed_usually(make: Make, values: dict[str, Any]) -> None:
    stepper, job = after_a_step(make, finish())
    with stepper.runtime.database.transaction() as tx:
        jobs.change(tx, job.id, values)
    assert claim(stepper, job.id) == {}


def test_a_job_that_somebody_holds_is_not_waited_for(make: Make) -> None:
    stepper, job = after_a_step(make, finish())
    with stepper.runtime.database.transaction() as tx:
        jobs.get(tx, job.id, lock=True)
        assert claim(stepper, job.id) == {}
    assert claim(stepper, job.id)


def test_a_job_without_room_for_a_decision_is_claimed_for_nothing(make: Make) -> None:
    stepper, job = after_a_step(make, limits={"steps": 1})
    attempt = stepper.job(job).attempt
    stepper.ring()
    waiting = stepper.job(job)
    assert (waiting.status, waiting.reason, waiting.attempt) == (JobStatus.WAITING, "budget", attempt + 1)  # the general way's


def test_two_decisions_of_one_job_leave_the_newer(make: Make) -> None:
    stepper, job = after_a_step(make)
    newer = job_of(claim(stepper, job.id)[job.id].job)
    told = [NewEvent(EventType.STEP_DECIDED, {"step": 2})]
    late = usual_plans.Decided(replace(newer, attempt=newer.attempt - 1), "late", "", "m", Usage(1, 1), 0.0, None, [], [], told)
    ours = usual_plans.Decided(newer, "ours", "", "m", Usage(1, 2, 0, Decimal("0.000000001")), 0.5, [{"title": "t"}], [], [], told)
    with stepper.runtime.database.statements() as tx:
        assert usual_plans.record(tx, [late, ours], ring_s=1).keys() == {(job.id, newer.attempt)}
    now = stepper.job(job)
    assert [step.thought for step in stepper.steps(job)][1:] == ["ours"]
    assert (now.step, now.plan, now.usage.output_tokens - newer.usage.output_tokens) == (2, ({"title": "t"},), 2)
    assert now.usage.cost_usd - newer.usage.cost_usd == Decimal("0.000000001")
    assert stepper.events(job)[-1].data == {"step": 2}


def end_of(stepper: Stepper, job: Job, claimed: Job) -> dict[tuple[str, int], Any]:
    told = [NewEvent(EventType.STEP_DECIDED, {"step": 2}), ending.end_event(JobStatus.SUCCEEDED, 2, claimed.usage, answer="there")]
    decided = usual_plans.Decided(claimed, "done", "", "m", Usage(), 0.0, None, [], [], told, "there")
    with stepper.runtime.database.statements() as tx:
        return usual_plans.record(tx, [decided], ring_s=1)


def test_a_job_ends_with_a_decision(make: Make) -> None:
    stepper, job = after_a_step(make)
    claimed = job_of(claim(stepper, job.id)[job.id].job)
    (recorded,) = end_of(stepper, job, claimed).values()
    ended = stepper.job(job)
    assert recorded == (job.id, claimed.attempt, ended.finished_at)
    assert (ended.status, ended.answer, ended.step) == (JobStatus.SUCCEEDED, "there", 2)
    assert types(stepper, job)[-2:] == ["step.decided", "job.succeeded"]


def message(tx: Transaction, stepper: Stepper, job: Job) -> None:
    jobs.change(tx, job.id, {"messages": 1})


def charged(tx: Transaction, stepper: Stepper, job: Job) -> None:
    jobs.charge(tx, job.id, Usage(5, 5))
    events.append(tx, job.id, NewEvent(EventType.STEP_DROPPED, {"step": 2}))


def asked(tx: Transaction, stepper: Stepper, job: Job) -> None:
    (call,) = steps.page(tx, job.id, after=0)[0].calls
    values = {"id": "appr_1", "tenant_id": job.tenant_id, "job_id": job.id, "call_id": call.id, "kind": "call", "message": ""}
    approvals.create(tx, values | {"tool": call.tool, "arguments": {}, "arguments_sha256": ""}, expires_s=60)


def of_its_own(tx: Transaction, stepper: Stepper, job: Job) -> None:
    hook(tx, job, job.id)


def of_the_tenant(tx: Transaction, stepper: Stepper, job: Job) -> None:
    hook(tx, job, None)


def hook(tx: Transaction, job: Job, job_id: str | None) -> None:
    kinds = [NoticeType.JOB_SUCCEEDED]
    webhooks.add(tx, webhook_id="wh_1", tenant_id=job.tenant_id, url="https://there", events=kinds, secret="whsec_", job_id=job_id)


@pytest.mark.parametrize("meanwhile", [message, charged, asked, of_its_own, of_the_tenant])
def test_a_job_that_something_is_open_of_does_not_end_at_once(make: Make, meanwhile: Callable[[Transaction, Stepper, Job], None]) -> None:
    stepper, job = after_a_step(make)
    claimed = job_of(claim(stepper, job.id)[job.id].job)
    with stepper.runtime.database.transaction() as tx:
        meanwhile(tx, stepper, job)
    assert end_of(stepper, job, claimed) == {}
    assert stepper.job(job).status is JobStatus.RUNNING
