"""The model's context of a job, built from what is recorded."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualtrack.domain.hosts import rules
from dualtrack.domain.job import Job, JobSpec
from dualtrack.domain.lifecycle import CallStatus, JobStatus, Phase
from dualtrack.domain.limits import JobLimits
from dualtrack.domain.network import EgressPolicy, SecretGrant
from dualtrack.domain.step import Call, Step
from dualtrack.domain.tool import Effect
from dualtrack.domain.usage import Usage
from dualtrack.engine.context import decision_request, summary_context
from dualtrack.models.actions import ActionFormat, request_body
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


def step(number: int, observation: str = "seen", *, ok: bool = True, reflection: str = "") -> Step:
    call = Call(
        id=f"call_{number}", job_id="job_1", tenant_id="ten_1", step=number, position=0, wave=0, tool="shell", effect=Effect.WORKSPACE,
        arguments={"command": "ls"}, status=CallStatus.SUCCEEDED, ok=ok, preview=observation, observation_key=None, details={}, attempt=1,
        tries=1, failures=0, traceparent="", created_at=NOW, started_at=NOW, finished_at=NOW,
    )  # fmt: skip
    return Step("job_1", number, f"thought {number}", reflection, "", "m", Usage(), 0.0, NOW, (call,))


def test_an_agent_is_told_of_its_network_and_of_placeholders() -> None:
    grant = SecretGrant("github", "GITHUB_TOKEN", (rules(["*.github.com"]), rules(["api.github.com:443"])), frozenset({"authorization"}))
    policy = EgressPolicy((rules(["*"]), rules(["pypi.org", "api.github.com:443"])), secrets=(grant,))
    plain = decision_request(job(), [], REGISTRY).system
    told = decision_request(job(), [], REGISTRY, None, policy).system
    assert told.startswith(plain)
    assert (
        "these hosts and no others, by HTTP and HTTPS through the proxy that its environment names: pypi.org, api.github.com:443." in told
    )
    assert "GITHUB_TOKEN" in told
    assert "in the header authorization to api.github.com:443, and the real value is put in on the way" in told


def test_messages_of_the_user_follow_the_step_they_came_after() -> None:
    said = {0: ("first",), 1: ("second", "third"), 3: ("last",)}
    request = decision_request(job(step=3), [step(1), step(2), step(3)], REGISTRY, said)
    assert request.messages == ("first",)
    assert [past.messages for past in request.steps] == [("second", "third"), (), ("last",)]


def test_messages_before_the_steps_that_are_shown_are_kept_word_for_word() -> None:
    now = job(step=3, compacted_through=2, summary="Half is done.")
    request = decision_request(now, [step(2), step(3)], REGISTRY, {0: ("first",), 1: ("second",), 3: ("last",)})
    assert request.messages == ("first", "second")
    assert [past.messages for past in request.steps] == [("last",)]
    assert decision_request(job(), [], REGISTRY, {0: ("first",)}).messages == ("first",)


def test_a_summary_stands_for_the_steps_up_to_it() -> None:
    request = decision_request(job(step=5, compacted_through=3, summary="Half is done."), [step(n) for n in range(1, 6)], REGISTRY)
    assert (request.summary, request.summarised) == ("Half is done.", 3)
    assert [past.thought for past in request.steps] == ["thought 4", "thought 5"]


def test_a_compaction_of_the_first_release_wrote_no_summary_and_hides_nothing() -> None:
    request = decision_request(job(step=2, compacted_through=1), [step(1), step(2)], REGISTRY)
    assert (request.summary, request.summarised, len(request.steps)) == ("", 0, 2)


def test_what_is_to_be_summarised_is_the_beginning_of_what_was_shown() -> None:
    history = [step(n, "o" * 1000) for n in range(4, 9)]
    request = decision_request(job(step=8, compacted_through=4, summary="s"), history, REGISTRY, {5: ("hurry",)})
    whole = summary_context(request, history, 7, short=False)
    assert list(whole.steps) == list(request.steps[:3])
    short = summary_context(request, history, 7, short=True)
    assert [past.thought for past in short.steps] == ["thought 5", "thought 6", "thought 7"]
    assert short.steps[0].messages == ("hurry",)
    assert all(len(past.calls[0].observation) < 400 for past in short.steps)
    assert f"read_artifact call_id=call_{7}" in short.steps[-1].calls[0].observation
    assert summary_context(request, history, 4, short=True).steps == []


@pytest.mark.parametrize("action_format", ["native", "json"])
@given(moves=st.lists(st.sampled_from(["step", "failed step", "message", "compact"]), max_size=12))
def test_the_context_is_only_added_to_between_two_compactions(action_format: ActionFormat, moves: list[str]) -> None:
    now, history, said = job(), list[Step](), dict[int, list[str]]()
    shown: list[dict[str, Any]] | None = None
    for move in moves:
        if move == "message":
            said.setdefault(now.step, []).append(f"note {len(said)}")
        elif move == "compact" and now.step - 1 > now.summarised_through:  # the last steps are always shown in full
            now, shown = replace(now, compacted_through=now.step - 1, summary=f"up to {now.step - 1}"), None
        elif "step" in move:
            asked = decision_request(now, history, REGISTRY, said).reflect
            made = step(now.step + 1, ok=move == "step", reflection="I was wrong." if asked else "")
            now, history = replace(now, step=made.number), [*history, made]
        request = decision_request(now, history, REGISTRY, said)
        assert request.summarised + len(request.steps) == now.step
        messages = request_body(replace(request, reflect=False), action_format)["messages"]
        if shown is not None:
            before = "\n".join(_flat(shown))
            assert "\n".join(_flat(messages)).startswith(before)
        shown = messages


def _flat(messages: list[dict[str, Any]]) -> list[str]:
    return [f"{message['content']}{message.get('tool_calls', '')}" for message in messages]
