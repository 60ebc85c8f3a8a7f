"""Tools that the operator takes away while jobs name them: the agent is told, and nothing is said to have died."""

from __future__ import annotations

from typing import Any

import pytest

from dualtrack.domain.lifecycle import JobStatus
from dualtrack.domain.network import EgressCeiling
from dualtrack.testing.payments import PAY, Pay, only_call, take_over_without_tools
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.tools.registry import TOOLS, Registry

from .conftest import Make, finish, shell, types

AGENT = {"tools": ["pay", "shell", "finish"]}


def test_an_agent_goes_on_without_a_tool_that_was_taken_away(make: Make) -> None:
    before = make([shell("true"), finish()], registry=Registry((*TOOLS, Pay())))
    job = before.submit(agent=AGENT)
    model = ScriptedModel([PAY, finish("done without")])
    after = make(model)
    after.doorbell.rings.extend(before.doorbell.rings)
    job = after.run(job)
    assert (job.status, job.answer, job.step) == (JobStatus.SUCCEEDED, "done without", 2)
    assert [spec.name for spec in model.requests[0].tools] == ["shell", "finish"]
    assert "they can't be called any more: pay." in model.requests[0].system
    assert "There is no tool 'pay'. The tools are: shell, finish." in only_call(after, job).preview
    assert "step.retrying" not in types(after, job)


def test_a_call_whose_tool_is_taken_away_before_it_is_made_is_told_to_the_agent(make: Make) -> None:
    pay = Pay()
    before = make([PAY, finish()], registry=Registry((*TOOLS, pay)))
    job = before.submit(agent=AGENT)
    assert before.ring()
    after = make([PAY, finish()])
    after.doorbell.rings.extend(before.doorbell.rings)
    assert after.run(job).status is JobStatus.SUCCEEDED
    call = only_call(after, job)
    assert (call.ok, call.intent_at, pay.keys) == (False, None, [])
    assert call.preview == "Not run: whoever runs this platform has taken the tool pay away. Do without it."


def test_a_call_in_doubt_that_can_not_be_made_again_stays_in_doubt(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    pay = Pay()
    stepper = make([PAY, finish()], registry=Registry((*TOOLS, pay)))
    job = stepper.submit(agent=AGENT | {"on_unknown": "retry"})
    pay.then = take_over_without_tools(stepper, job, monkeypatch)
    assert stepper.run(job).status is JobStatus.SUCCEEDED
    assert only_call(stepper, job).details == {"outcome": "unknown"}
    assert len(pay.keys) == 1


@pytest.mark.parametrize(("failures", "status"), [(1, JobStatus.SUCCEEDED), (50, JobStatus.FAILED)])
def test_a_fault_before_the_model_is_asked_is_written_down_as_what_it_is(
    make: Make, monkeypatch: pytest.MonkeyPatch, failures: int, status: JobStatus
) -> None:
    policy, faults = EgressCeiling.policy, [ZeroDivisionError("ours")] * failures

    def failing(self: EgressCeiling, *arguments: Any) -> Any:
        if faults:
            raise faults.pop()
        return policy(self, *arguments)

    monkeypatch.setattr(EgressCeiling, "policy", failing)
    stepper = make([finish()])
    job = stepper.run(stepper.submit())
    assert job.status is status
    assert "step.retrying" in types(stepper, job)
    if status is JobStatus.FAILED:
        assert (job.reason, job.message) == ("internal_fault", "ZeroDivisionError in the planner; see its log.")
