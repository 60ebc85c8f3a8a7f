"""Context that lasts: compaction into an event, what it costs, what survives a crash in the middle, and steps read only once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest
from sqlalchemy import text, update

from dualtrack.db import jobs
from dualtrack.db.engine import Database
from dualtrack.db.tables import jobs as jobs_table
from dualtrack.domain.errors import DatabaseUnavailable
from dualtrack.domain.events import END_EVENTS
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.engine.ending import usage_data
from dualtrack.engine.history import History
from dualtrack.models.actions import request_body
from dualtrack.models.port import Decision, DecisionRequest
from dualtrack.testing.model_script import Script
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.testing.stepper import Stepper
from dualtrack.work import Work

from .conftest import Make, cancel, finish, types


class Crash(BaseException):
    """Nothing of ours catches it: as if the process were gone."""


def plan(n: int, **more: Any) -> dict[str, Any]:
    """A step that needs no executor."""
    return {"tool": "update_plan", "arguments": {"steps": [{"title": f"part {n}", "status": "done"}]}, "thought": f"thought {n}", **more}


def compactions(stepper: Stepper, job: Job) -> list[dict[str, Any]]:
    return [dict(event.data) for event in stepper.events(job) if event.type == "context.compacted"]


def assert_paid(stepper: Stepper, job: Job) -> None:
    """What the job has used is the sum over its events."""
    found = [event.data["usage"] for event in stepper.events(job) if "usage" in event.data and event.type not in END_EVENTS]
    used = usage_data(stepper.job(job).usage)
    for name in ("input_tokens", "output_tokens", "cached_tokens"):
        assert sum(usage[name] for usage in found) == used[name], name


def test_many_steps_are_summarised_again_and_again_and_the_prefix_grows_only_in_between(make: Make) -> None:
    model = ScriptedModel([plan(n) for n in range(40)] + [finish("done")])
    stepper = make(model, context_steps=10)
    job = stepper.run(stepper.submit(), most=200)
    assert (job.status, job.answer, job.step) == (JobStatus.SUCCEEDED, "done", 41)
    found = compactions(stepper, job)
    assert [one["through_step"] for one in found] == [8, 16, 24, 32]
    assert all(one["model"] == "scripted" and one["usage"]["input_tokens"] > 0 for one in found)
    assert [request.context.summary for request in model.summaries[1:]] == [
        one["summary"] for one in found[:-1]
    ]  # each takes the last one in
    assert found[1]["summary"].endswith("The plan as it stood then:\n- [done] part 18")
    assert found[1]["summary"].count("The plan") == 1
    assert max(len(request.steps) for request in model.requests) == 10
    for before, after in zip(model.requests, model.requests[1:], strict=False):
        assert after.summarised + len(after.steps) == before.summarised + len(before.steps) + 1
        shown, later = (request_body(one, "native")["messages"] for one in (before, after))
        assert (later[: len(shown)] == shown) is (before.summarised == after.summarised)
    assert_paid(stepper, job)


def test_a_context_of_many_tokens_is_summarised_before_the_provider_refuses_it(make: Make) -> None:
    steps = [plan(n, input_tokens=100 * n, output_tokens=1) for n in range(9)]
    model = ScriptedModel([*steps, plan(9, input_tokens=300), finish()], context_tokens=1000)
    stepper = make(model)
    job = stepper.run(stepper.submit())
    assert [one["through_step"] for one in compactions(stepper, job)] == [5]  # step 8 had 701 tokens, more than 0.7 of the window
    assert [(request.summarised, len(request.steps)) for request in model.requests[7:10]] == [(0, 7), (5, 3), (5, 4)]
    assert stepper.job(job).status is JobStatus.SUCCEEDED
    assert_paid(stepper, job)


def test_what_the_provider_calls_too_long_is_summarised_at_once(make: Make) -> None:
    model = ScriptedModel([plan(n) for n in range(6)] + [{"error": "context_too_long", "times": 1, **finish("fits now")}])
    stepper = make(model)
    job = stepper.run(stepper.submit())
    assert (job.status, job.answer) == (JobStatus.SUCCEEDED, "fits now")
    assert (model.requests[-1].summarised, len(model.requests[-1].steps)) == (3, 3)
    assert_paid(stepper, job)


@pytest.mark.parametrize("steps", [0, 1, 9])
def test_a_context_that_is_always_too_long_ends_the_job_after_a_few_tries(make: Make, steps: int) -> None:
    model = ScriptedModel([plan(n) for n in range(steps)] + [{"error": "context_too_long"}])
    stepper = make(model)
    job = stepper.run(stepper.submit())
    assert (job.status, job.reason) == (JobStatus.FAILED, "context_length_exceeded")
    assert len(model.requests) <= steps + 5
    assert_paid(stepper, job)


@pytest.mark.parametrize("broken", [{"error": "refused"}, {"error": "context_too_long"}, {"text": ""}])
def test_where_the_model_writes_no_summary_the_platform_does(make: Make, broken: dict[str, Any]) -> None:
    """The script breaks what is asked at step 8: the summary, whose context ends there; the decision there was made before."""
    whole = [plan(n) for n in range(12)] + [finish("done")]
    later = [*whole[:8], broken, *whole[9:]]
    model = ScriptedModel(lambda _: Script.model_validate(whole if len(model.requests) < 10 else later))
    stepper = make(model, context_steps=10, summary_chars=1000)
    job = stepper.run(stepper.submit())
    assert (job.status, job.answer) == (JobStatus.SUCCEEDED, "done")
    (found,) = compactions(stepper, job)
    assert (found["through_step"], found["model"]) == (8, "")
    assert found["summary"].startswith("From the platform's records:")
    assert "Step 8: thought 7" in found["summary"]
    assert "part 10" in found["summary"]
    assert len(found["summary"]) <= 1000
    assert_paid(stepper, job)


def test_an_outage_while_a_summary_is_asked_for_is_waited_out(make: Make) -> None:
    model = ScriptedModel([plan(n) for n in range(8)] + [{"error": "server_error", "times": 1, **plan(8)}, plan(9), plan(10), finish()])
    stepper = make(model, context_steps=10)
    job = stepper.run(stepper.submit())
    assert job.status is JobStatus.SUCCEEDED
    found = types(stepper, job)
    # the failure befell the decision at that point first
    assert (found.count("step.retrying"), found.count("context.compacted"), len(model.summaries)) == (2, 1, 2)


def test_a_crash_between_a_summary_and_its_record_loses_nothing(make: Make) -> None:
    crashed = False

    def crash(_: object) -> None:
        nonlocal crashed
        if not crashed:
            crashed = True
            raise Crash

    model = ScriptedModel([plan(n) for n in range(15)] + [finish("done")], on_summarise=crash)
    stepper = make(model, context_steps=10)
    job = stepper.submit()
    with pytest.raises(Crash):
        stepper.run(job)
    assert not compactions(stepper, job)
    stepper.leases_run_out()
    job = stepper.run(job)
    assert (job.status, job.step) == (JobStatus.SUCCEEDED, 16)
    assert len(compactions(stepper, job)) == 1
    assert_paid(stepper, job)


def test_a_summary_that_comes_too_late_is_dropped_and_paid_for(make: Make) -> None:
    overtaken = False

    def freeze(_: object) -> None:
        nonlocal overtaken
        if not overtaken:
            overtaken = True
            stepper.leases_run_out()
            stepper.planner.advance(job.id)

    model = ScriptedModel([plan(n) for n in range(15)] + [finish("done")], on_summarise=freeze)
    stepper = make(model, context_steps=10)
    job = stepper.submit()
    stepper.run(job)
    found = types(stepper, job)
    assert (found.count("context.compacted"), found.count("step.dropped"), len(model.summaries)) == (1, 1, 2)
    assert_paid(stepper, job)


def test_a_decision_that_comes_too_late_is_dropped_and_paid_for(make: Make) -> None:
    overtaken = False

    def freeze(_: object) -> None:
        nonlocal overtaken
        if not overtaken:
            overtaken = True
            stepper.leases_run_out()
            stepper.planner.advance(job.id)

    stepper = make(ScriptedModel([plan(0), finish()], on_decide=freeze))
    job = stepper.submit()
    stepper.run(job)
    (dropped,) = [event for event in stepper.events(job) if event.type == "step.dropped"]
    assert (dropped.data["step"], dropped.data["attempt"]) == (1, 1)
    assert dropped.data["usage"]["input_tokens"] > 0
    assert_paid(stepper, job)


def test_a_decision_whose_commit_was_not_confirmed_is_paid_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    stepper = make([plan(0, input_tokens=70, output_tokens=7), finish()])
    planner = stepper.planner
    record, unconfirmed = planner._record, 1

    def committed(*arguments: Any) -> Work[None]:
        nonlocal unconfirmed
        yield from record(*arguments)
        if unconfirmed:
            unconfirmed -= 1
            raise DatabaseUnavailable("cut while committing")

    monkeypatch.setattr(planner, "_record", committed)
    job = stepper.submit()
    stepper.ring()
    assert types(stepper, job) == ["job.queued", "job.started", "step.decided", "plan.updated", "call.finished"]
    assert stepper.job(job).usage.total_tokens == 77
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert_paid(stepper, job)


def test_a_decision_that_can_not_be_written_is_in_an_event_whether_it_is_tried_again_or_not(make: Make) -> None:
    class Unwritable(ScriptedModel):
        def decide(self, request: DecisionRequest) -> Decision:
            return replace(super().decide(request), latency_s=float("nan"))  # no number in JSON

    stepper = make(Unwritable([plan(0)]), attempts=2)
    job = stepper.run(stepper.submit())
    assert job.status is JobStatus.FAILED
    assert [name for name in types(stepper, job) if name.startswith("step.")] == ["step.retrying", "step.dropped"]
    assert job.usage.total_tokens > 0
    assert_paid(stepper, job)


def test_what_a_decision_cost_is_not_added_to_a_job_that_has_ended(make: Make) -> None:
    def stop(_: object) -> None:
        cancel(stepper, job)

    stepper = make(ScriptedModel([finish()], on_decide=stop))
    job = stepper.submit()
    assert stepper.run(job).status is JobStatus.CANCELLED
    assert stepper.job(job).usage.total_tokens == 0
    assert types(stepper, job)[-1] == "job.cancelled"


_STEPS: Final = """
    INSERT INTO steps (job_id, number, thought, model) SELECT :job, n, 'thought ' || n, 'm' FROM generate_series(1, :steps) n
"""
_CALLS: Final = """
    INSERT INTO calls (id, job_id, tenant_id, step, position, tool, effect, arguments, status, ok, preview, finished_at)
    SELECT :job || '_' || n, :job, :tenant, n, 0, 'shell', 'workspace', '{}', 'succeeded', true, 'fine', now()
    FROM generate_series(1, :steps) n
"""


def aged(database: Database, job: Job, steps: int, *, summarised: int = 0) -> None:
    """Let a queued job have a long past, each step with one call."""
    with database.transaction() as tx:
        for statement in (_STEPS, _CALLS):
            tx.connection.execute(text(statement), {"job": job.id, "steps": steps, "tenant": job.tenant_id})
        values = {"step": steps, "status": "running", "compacted_through": summarised, "summary": "All went well." if summarised else ""}
        tx.connection.execute(update(jobs_table).where(jobs_table.c.id == job.id).values(values))


def test_a_decision_late_in_a_job_reads_no_more_than_one_early_in_it(make: Make, database: Database) -> None:
    model = ScriptedModel([plan(0)] * 10_000)
    stepper = make(model)
    job = stepper.submit(limits={"steps": 10_000})
    aged(database, job, 7500, summarised=7400)
    stepper.ring()
    request = model.requests[0]
    assert (request.summarised, request.summary, len(request.steps)) == (7400, "All went well.", 100)
    assert request.steps[-1].thought == "thought 7500"
    stepper.ring()
    assert [past.thought for past in model.requests[1].steps[-2:]] == ["thought 7500", "thought 0"]


def test_settled_steps_are_read_once_whoever_advances_the_job(make: Make, database: Database) -> None:
    stepper = make(ScriptedModel([plan(0)] * 10_000))
    job = stepper.submit(limits={"steps": 10_000})
    aged(database, job, 50)
    mine = History(most_chars=1_000_000, last=3)
    mine.warm(database, job.id)
    with database.transaction() as tx:
        first = mine.read(tx, jobs.get(tx, job.id))
    for _ in range(5):
        stepper.ring()  # another process goes on
    with database.transaction() as tx:
        tx.connection.execute(text("UPDATE steps SET thought = 'changed' WHERE number <= 50"))
        second = mine.read(tx, jobs.get(tx, job.id))
    assert [step.number for step in second] == list(range(1, 56))
    assert [step.thought for step in second[:49]] == [step.thought for step in first[:49]]  # not read again
    assert second[49].thought == "changed"  # the last one was not settled
    assert all(len(step.calls) == 1 for step in second)


def test_what_is_kept_of_steps_is_bounded_and_forgetting_changes_nothing(make: Make, database: Database) -> None:
    stepper = make(ScriptedModel([plan(0)] * 10_000))
    known = History(most_chars=70_000, last=3)
    aged_jobs = [stepper.submit(str(n), limits={"steps": 10_000}) for n in range(5)]
    for job in aged_jobs:
        aged(database, job, 30)
    for job in aged_jobs * 2:
        known.warm(database, job.id)
        with database.transaction() as tx:
            assert [step.number for step in known.read(tx, jobs.get(tx, job.id))] == list(range(1, 31))
        assert known.chars <= 70_000


def test_a_job_compacted_by_the_first_release_is_shown_in_full(make: Make, database: Database) -> None:
    model = ScriptedModel([plan(0)] * 10_000)
    stepper = make(model)
    job = stepper.submit()
    aged(database, job, 8)
    with database.transaction() as tx:
        tx.connection.execute(update(jobs_table).values(compacted_through=5))
    stepper.ring()
    assert len(model.requests[0].steps) == 8
