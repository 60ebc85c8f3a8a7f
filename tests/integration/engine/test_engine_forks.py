"""Forks and retries: the steps, context and workspace of a job up to a point, and nothing of it done or paid for twice."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import select

from dualtrack.db import job_lists, jobs, messages
from dualtrack.db.tables import artifacts
from dualtrack.domain.conflicts import JobNotEnded, JobSucceeded, StepCutShort, StepNotEnded
from dualtrack.domain.errors import DualtrackError, InvalidRequest, NotFound, TooLarge
from dualtrack.domain.forking import Changes
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import CallStatus, JobStatus
from dualtrack.domain.usage import Usage
from dualtrack.engine import forks, observations
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.testing.stepper import Stepper

from .conftest import CountingSandbox, Make, cancel, finish, fork, retry, shell, types, write

pytestmark = pytest.mark.usefixtures("healthy")


def until(stepper: Stepper, job: Job, step: int) -> None:
    """Run until that step is decided and its calls have ended."""
    while stepper.job(job).step < step or any(call.finished_at is None for call in stepper.steps(job)[-1].calls):
        assert stepper.ring()


PAID = {"input_tokens": 100, "output_tokens": 10}
LOG = [{**shell(f"echo {n} >> log; cat log"), **PAID} for n in (1, 2, 3)]


def test_a_fork_goes_on_from_the_steps_workspace_and_context(make: Make, sandbox: CountingSandbox) -> None:
    model = ScriptedModel([*LOG, finish()])
    stepper = make(model)
    source = stepper.run(stepper.submit(metadata={"a": "b"}))
    ran, asked = len(sandbox.ran), len(model.requests)
    job = fork(stepper, source, 2, message="again")
    assert (job.status, job.step, job.forked_from, job.forked_step) == (JobStatus.QUEUED, 2, source.id, 2)
    assert (job.usage, job.spec.metadata) == (Usage(), {"a": "b"})
    job = stepper.run(job)
    assert job.status is JobStatus.SUCCEEDED
    assert (len(sandbox.ran) - ran, len(model.requests) - asked) == (1, 2)
    steps = stepper.steps(job)
    assert [step.number for step in steps] == [1, 2, 3, 4]
    assert steps[2].calls[0].preview.split() == ["1", "2", "3"]
    assert sum((step.usage for step in steps), Usage()) == job.usage
    assert [step.usage.total_tokens for step in steps[:3]] == [0, 0, 110]
    assert types(stepper, job)[:4] == ["job.queued", "job.forked", "message.added", "job.started"]
    first, again = model.requests[2], model.requests[asked]
    assert again.steps[0] == first.steps[0]
    assert (again.steps[1].messages, first.steps[1].messages) == (("again",), ())
    assert again.steps[1].calls == first.steps[1].calls
    assert {call.id for step in steps for call in step.calls}.isdisjoint(call.id for step in stepper.steps(source) for call in step.calls)


def test_a_fork_from_the_beginning_has_the_inputs_and_nothing_else(make: Make) -> None:
    stepper = make([*LOG, finish()])
    source = stepper.run(stepper.submit())
    job = stepper.run(fork(stepper, source, 0, instructions="differently", checks=["test -e log"]))
    assert (job.status, job.step, job.spec.instructions) == (JobStatus.SUCCEEDED, 4, "differently")
    assert stepper.steps(job)[2].calls[0].preview.split() == ["1", "2", "3"]
    assert source.spec.checks == ()


def test_a_running_job_is_forked_and_not_disturbed(make: Make) -> None:
    stepper = make([*LOG, finish()])
    source = stepper.submit()
    until(stepper, source, 2)
    job = fork(stepper, source, 1)
    assert stepper.run(source).status is JobStatus.SUCCEEDED
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert [stepper.steps(one)[2].calls[0].preview.split() for one in (source, job)] == [["1", "2", "3"]] * 2


def test_what_was_changed_holds_and_the_rest_is_as_it_was(make: Make) -> None:
    stepper = make([*LOG, finish()])
    source = stepper.run(stepper.submit(limits={"steps": 9, "tokens": 5000}, agent={"name": "a", "system_prompt": "be good"}))
    with stepper.runtime.database.transaction() as tx:
        jobs.change(tx, source.id, {"limits": {"steps": 11, "tokens": 7000, "cost_usd": "3"}})
    job = fork(stepper, source, 1, limits={"cost_usd": 1}, agent={"model": "fast"}, metadata={})
    assert (job.limits.steps, job.limits.tokens, job.limits.cost_usd) == (11, 7000, Decimal(1))
    assert (job.spec.agent.name, job.spec.agent.model, job.spec.agent.system_prompt) == ("a", "fast", "be good")
    assert job.spec.metadata == {}


@pytest.mark.parametrize(
    ("step", "changes", "kind", "param"),
    [
        (5, {}, InvalidRequest, "step"),
        (99, {}, InvalidRequest, "step"),
        (4, {}, InvalidRequest, "message"),
        (3, {"limits": {"steps": 3}}, InvalidRequest, "limits.steps"),
        (1, {"agent": {"model": "unknown"}}, InvalidRequest, "agent.model"),
        (1, {"message": "x" * 100_000}, TooLarge, "message"),
    ],
)
def test_what_does_not_fit_is_refused_and_makes_no_job(
    make: Make, step: int, changes: Mapping[str, Any], kind: type[DualtrackError], param: str
) -> None:
    stepper = make([*LOG, finish()])
    source = stepper.run(stepper.submit())
    with pytest.raises(kind) as refused:
        fork(stepper, source, step, **changes)
    assert refused.value.param == param
    with stepper.runtime.database.transaction() as tx:
        assert [job.id for job in job_lists.page(tx, source.tenant_id, limit=10)] == [source.id]


def test_a_step_that_is_not_over_can_not_be_forked(make: Make) -> None:
    stepper = make([{"calls": [shell("true"), shell("true")]}, finish()])
    source = stepper.submit()
    stepper.ring()
    with pytest.raises(StepNotEnded, match="not ended") as refused:
        fork(stepper, source, 1)
    assert refused.value.param == "step"
    stepper.ring()
    cancel(stepper, source)
    with pytest.raises(StepCutShort, match="cut short"):
        fork(stepper, source, 1)
    with pytest.raises(NotFound):
        forks.fork(stepper.runtime, tenant_id="ten_other", job_id=source.id, step=0, changes=Changes(), known_models=["deep"])


def test_a_job_that_has_ended_well_goes_on_with_a_message(make: Make) -> None:
    model = ScriptedModel([shell("true"), finish("first"), finish("second")])
    stepper = make(model)
    source = stepper.run(stepper.submit(checks=["true"]))
    job = stepper.run(fork(stepper, source, 2, message="one thing more"))
    assert (job.status, job.answer, job.step) == (JobStatus.SUCCEEDED, "second", 3)
    assert model.requests[-1].steps[1].messages == ("one thing more",)
    assert types(stepper, job).count("checks.finished") == 1


def test_observations_stay_readable_under_old_and_new_ids(make: Make) -> None:
    stepper = make([shell("seq 1 3000"), shell("true"), finish()], observation_chars=200)
    source = stepper.run(stepper.submit())
    old = stepper.steps(source)[0].calls[0].id
    job = fork(stepper, fork(stepper, source, 2), 1)
    new = stepper.steps(job)[0].calls[0].id
    assert new != old
    for call_id in (old, new):
        assert observations.read(stepper.runtime, job.id, call_id).split()[-1] == "3000"
    late = stepper.steps(source)[1].calls[0].id
    with pytest.raises(NotFound):
        observations.read(stepper.runtime, job.id, late)
    with pytest.raises(NotFound):
        observations.read(stepper.runtime, source.id, new)


def test_artifacts_plan_and_messages_come_along(make: Make) -> None:
    plan = {"tool": "update_plan", "arguments": {"steps": [{"title": "one", "status": "done"}]}}
    later = {"tool": "update_plan", "arguments": {"steps": [{"title": "two", "status": "done"}]}}
    script: list[dict[str, Any]] = [
        {"calls": [plan, shell("echo x > a")]},
        {"tool": "save_artifact", "arguments": {"path": "a"}},
        later,
        finish(),
    ]
    stepper = make(ScriptedModel(script))
    source = stepper.submit()
    write(stepper, source, "zero")
    until(stepper, source, 2)
    write(stepper, source, "two")
    until(stepper, source, 3)
    write(stepper, source, "untaken")
    forked = {step: fork(stepper, source, step) for step in (1, 2, 3)}
    assert [item["title"] for item in forked[2].plan] == ["one"]
    assert [item["title"] for item in forked[3].plan] == ["two"]
    with stepper.runtime.database.transaction() as tx:
        told = {step: [(one.number, one.content, one.after_step) for one in messages.page(tx, job.id)] for step, job in forked.items()}
        kept = {step: tx.connection.execute(select(artifacts).where(artifacts.c.job_id == job.id)).all() for step, job in forked.items()}
    assert told[1] == [(1, "zero", 0)]
    assert told[2] == [(1, "zero", 0), (2, "two", 2)]
    assert told[3] == [(1, "zero", 0), (2, "two", 2), (3, "untaken", None)]
    assert [len(kept[step]) for step in (1, 2, 3)] == [0, 1, 1]
    assert kept[2][0].call_id == stepper.steps(forked[2])[1].calls[0].id
    for job in (source, *forked.values()):
        assert stepper.run(job).status is JobStatus.SUCCEEDED


def test_a_fork_from_before_a_compaction_has_the_full_steps_and_one_from_after_it_the_summary(make: Make) -> None:
    model = ScriptedModel([shell(f"echo {n}") for n in range(14)] + [finish()])
    stepper = make(model, context_steps=10)
    source = stepper.run(stepper.submit(limits={"steps": 30}))
    compacted = next(event.data for event in stepper.events(source) if event.type == "context.compacted")
    at = next(len(request.steps) + request.summarised for request in model.requests if request.summarised)
    before, after = fork(stepper, source, at - 1), fork(stepper, source, at)
    assert (before.summarised_through, after.summarised_through) == (0, compacted["through_step"])
    assert after.summary == compacted["summary"]
    again = fork(stepper, after, at)
    assert again.summary == after.summary
    assert fork(stepper, after, at - 1).summary == ""
    assert fork(stepper, again, at).summary == after.summary
    for job in (before, after, again):
        assert stepper.run(job).status is JobStatus.SUCCEEDED


def test_a_fork_is_not_stuck_where_it_begins(make: Make) -> None:
    stepper = make([shell("false")] * 3 + [finish()])
    source = stepper.run(stepper.submit())
    assert source.reason == "no_progress"
    assert stepper.run(fork(stepper, source, 3)).status is JobStatus.SUCCEEDED


def test_retry_of_a_job_that_reached_a_limit_goes_on_after_its_last_step(make: Make) -> None:
    stepper = make([*LOG, finish()])
    source = stepper.run(stepper.submit(limits={"steps": 2, "on_limit": "fail"}))
    assert source.reason == "limit_steps"
    with pytest.raises(InvalidRequest, match="2 steps are done"):
        retry(stepper, source)
    job = retry(stepper, source, limits={"steps": 10})
    assert (job.step, stepper.run(job).status) == (2, JobStatus.SUCCEEDED)


def test_retry_of_a_job_without_progress_keeps_none_of_what_failed_alike(make: Make) -> None:
    stepper = make([shell("true"), shell("false"), shell("false"), shell("false"), finish()])
    source = stepper.run(stepper.submit())
    assert source.reason == "no_progress"
    assert retry(stepper, source).step == 1


def test_retry_of_a_job_whose_model_said_nothing_of_use_forgets_that(make: Make) -> None:
    stepper = make([shell("true"), {"text": "?"}, {"text": "?"}, {"text": "?"}])
    source = stepper.run(stepper.submit())
    assert source.reason == "malformed_actions"
    job = retry(stepper, source)
    assert (job.step, job.malformed) == (1, 0)


def test_retry_of_a_job_whose_agent_gave_up_takes_that_back(make: Make) -> None:
    stepper = make([shell("true"), finish("can't", success=False)])
    source = stepper.run(stepper.submit())
    assert retry(stepper, source, message="you can").step == 1


def test_retry_of_a_cancelled_job_does_the_step_again_that_was_cut_short(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([shell("echo 1 >> log"), {"calls": [shell("echo 2 >> log; cat log"), shell("true")]}, finish()])
    source = stepper.submit()
    until(stepper, source, 1)
    while stepper.job(source).step < 2:
        stepper.ring()
    stepper.ring()
    cancel(stepper, source)
    assert [call.status for call in stepper.steps(source)[1].calls] == [CallStatus.SUCCEEDED, CallStatus.CANCELLED]
    job = retry(stepper, source)
    assert job.step == 1
    job = stepper.run(job)
    assert job.status is JobStatus.SUCCEEDED
    assert stepper.steps(job)[1].calls[0].preview.split() == ["1", "2"]


def test_retry_of_a_job_that_its_provider_failed_keeps_all_of_it(make: Make) -> None:
    stepper = make([shell("true"), {**finish(), "error": "refused", "times": 1}])
    source = stepper.run(stepper.submit())
    assert source.reason == "model_request_refused"
    assert (retry(stepper, source).step, stepper.job(source).step) == (1, 1)


def test_only_what_ended_badly_is_retried(make: Make) -> None:
    stepper = make([finish()])
    source = stepper.submit()
    with pytest.raises(JobNotEnded, match="not ended"):
        retry(stepper, source)
    with pytest.raises(JobSucceeded, match="succeeded"):
        retry(stepper, stepper.run(source))
