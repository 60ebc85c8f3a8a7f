"""The model's context of a job, built from what is recorded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from dualtrack.domain.job import Job, JobSpec
from dualtrack.domain.lifecycle import CallStatus, JobStatus, Phase
from dualtrack.domain.limits import JobLimits
from dualtrack.domain.step import Call, Step
from dualtrack.domain.tool import Effect
from dualtrack.domain.usage import Usage
from dualtrack.engine.context import decision_request
from dualtrack.tools.registry import Registry

NOW = datetime.now(UTC)
REGISTRY = Registry()


def job(**changes: Any) -> Job:
    values: dict[str, Any] = {
        "id": "job_1", "tenant_id": "ten_1", "spec": JobSpec.model_validate({"instructions": "do it"}), "status": JobStatus.RUNNING,
        "phase": Phase.PLAN, "reason": None, "message": None, "answer": None, "plan": (), "step": 0, "workspace": None, "last_seq": 1,
        "attempt": 1, "tries": 1, "failures": 0, "malformed": 0, "compacted_through": 0, "verified_step": 0, "stopping": None,
        "usage": Usage(), "traceparent": "", "request_traceparent": "", "created_at": NOW, "started_at": NOW, "finished_at": None,
        "deadline_at": NOW + timedelta(hours=1), "limits": JobLimits(),
    }  # fmt: skip
    return Job(**values | changes)


def step(number: int, observation: str = "seen") -> Step:
    call = Call(
        id=f"call_{number}", job_id="job_1", tenant_id="ten_1", step=number, position=0, wave=0, tool="shell", effect=Effect.WORKSPACE,
        arguments={"command": "ls"}, status=CallStatus.SUCCEEDED, ok=True, preview=observation, observation_key=None, details={}, attempt=1,
        tries=1, failures=0, traceparent="", created_at=NOW, started_at=NOW, finished_at=NOW,
    )  # fmt: skip
    return Step("job_1", number, f"thought {number}", "", "", "m", Usage(), 0.0, NOW, (call,))


def test_messages_of_the_user_follow_the_step_they_came_after() -> None:
    said = {0: ("first",), 1: ("second", "third"), 3: ("last",)}
    request = decision_request(job(step=3), [step(1), step(2), step(3)], REGISTRY, said)
    assert request.messages == ("first",)
    assert [past.messages for past in request.steps] == [("second", "third"), (), ("last",)]


def test_messages_before_the_steps_that_are_shown_are_kept_word_for_word() -> None:
    request = decision_request(job(step=3), [step(3)], REGISTRY, {0: ("first",), 1: ("second",), 3: ("last",)})
    assert request.messages == ("first", "second")
    assert [past.messages for past in request.steps] == [("last",)]
    assert decision_request(job(), [], REGISTRY, {0: ("first",)}).messages == ("first",)
