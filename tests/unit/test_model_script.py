from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dualtrack.domain.errors import MalformedAction, ModelRateLimited, UnknownModel
from dualtrack.models.port import DecisionRequest, PastStep
from dualtrack.testing.model_script import Script, script_in
from dualtrack.testing.scripted_model import ScriptedModel

STEPS: list[dict[str, Any]] = [
    {"tool": "shell", "arguments": {"command": "ls"}, "thought": "look"},
    {"text": "nonsense"},
    {"tool": "finish", "arguments": {"answer": "ok"}},
]


def request(*, task: str = "do it", past: int = 0, model: str = "deep", reflect: bool = False) -> DecisionRequest:
    steps = [PastStep(thought="t", calls=())] * past
    return DecisionRequest(model=model, system="s", task=task, tools=(), steps=steps, reflect=reflect)


def test_the_step_is_chosen_by_the_number_of_past_steps_and_the_answer_repeats() -> None:
    model = ScriptedModel(STEPS)
    first, again = model.decide(request()), model.decide(request())
    assert first.calls == again.calls
    assert (first.calls[0].tool, first.calls[0].arguments, first.thought) == ("shell", {"command": "ls"}, "look")
    with pytest.raises(MalformedAction) as malformed:
        model.decide(request(past=1))
    assert malformed.value.raw == "nonsense"
    assert malformed.value.usage.output_tokens > 0
    assert model.decide(request(past=2)).calls[0].arguments == {"answer": "ok"}
    assert model.decide(request(past=99)).calls[0].tool == "finish"


def test_a_script_in_the_task_wins() -> None:
    task = f"Please.\n```script\n{json.dumps([{'tool': 'list_files'}])}\n```\nThanks."
    assert ScriptedModel(STEPS).decide(request(task=task)).calls[0].tool == "list_files"


def test_a_failure_goes_away_after_its_times() -> None:
    model = ScriptedModel([{"tool": "finish", "error": "rate_limited", "times": 2}])
    for _ in range(2):
        with pytest.raises(ModelRateLimited):
            model.decide(request())
    assert model.decide(request()).calls[0].tool == "finish"
    with pytest.raises(ModelRateLimited):
        model.decide(request(task="another job counts for itself"))


def test_a_reflection_is_given_only_when_asked_for() -> None:
    model = ScriptedModel([{"tool": "finish", "reflection": "I was wrong."}])
    assert model.decide(request()).reflection == ""
    assert model.decide(request(reflect=True)).reflection == "I was wrong."


def test_unknown_models_are_refused() -> None:
    with pytest.raises(UnknownModel):
        ScriptedModel().decide(request(model="nobody"))


def test_a_broken_script_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="no script"):
        script_in(['```script\n[{"tol": "x"}]\n```'])
    with pytest.raises(ValueError, match="calls"):
        Script.model_validate([{"thought": "nothing else"}])


def test_chat_echoes_and_streams_the_same_text() -> None:
    model = ScriptedModel()
    body = {"model": "fast", "messages": [{"role": "user", "content": "hello there"}], "stream_options": {"include_usage": True}}

    async def both() -> tuple[str, str, dict[str, int]]:
        whole = await model.chat(body)
        chunks = [chunk async for chunk in model.chat_stream(body)]
        streamed = "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])
        return whole["choices"][0]["message"]["content"], streamed, chunks[-1]["usage"]

    whole, streamed, usage = asyncio.run(both())
    assert whole == streamed == "You said: hello there"
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0
