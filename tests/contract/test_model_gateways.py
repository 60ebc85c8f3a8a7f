"""What every adapter of the model port does alike: the scripted one, and LiteLLM's before the scripted server, in both action formats."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dualtrack.domain.errors import (
    ContextTooLong,
    InvalidRequest,
    MalformedAction,
    ModelError,
    ModelRateLimited,
    ModelUnavailable,
    UnknownModel,
)
from dualtrack.domain.tool import Effect, ToolSpec
from dualtrack.models.catalog import build_catalog
from dualtrack.models.gateway import LiteLLMGateway
from dualtrack.models.port import Decision, DecisionRequest, ModelGateway, PastCall, PastStep, Summary, SummaryRequest
from dualtrack.models.retries import Pause
from dualtrack.settings import ModelSettings, ModelsSettings
from dualtrack.testing.scripted_model import ScriptedModel

SHELL = ToolSpec(
    "shell", "Run.", {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}, Effect.WORKSPACE
)
FINISH = ToolSpec(
    "finish", "Done.", {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}, Effect.CONTROL
)
LOOK = {"tool": "shell", "arguments": {"command": "ls -l 'ä'"}, "thought": "look"}
DONE = {"tool": "finish", "arguments": {"answer": "ok"}, "reflection": "I was wrong."}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with subprocess.Popen([sys.executable, "-m", "dualtrack.testing.model_server"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["base_url"]
        process.terminate()


@pytest.fixture(params=["scripted", "native", "json"])
def gateway(request: pytest.FixtureRequest, server: str) -> ModelGateway:
    if request.param == "scripted":
        return ScriptedModel()
    house = ModelSettings(litellm_model="openai/house", api_base=server, action_format=request.param, retries=1)
    settings = ModelsSettings(models={"house": house}, tracks={"fast": ["house"], "deep": ["house"]})
    return LiteLLMGateway(build_catalog(settings, {}), environment={}, pause=Pause(random.Random(1), first_s=0.001))


def context(script: object, *, past: int = 0, model: str = "deep", **fields: Any) -> DecisionRequest:
    steps = [PastStep("look", (PastCall("shell", {"command": "ls"}, ok=False, observation="no"),))] * past
    task = f"Do it.\n```script\n{json.dumps(script)}\n```"
    return DecisionRequest(model, "Be good.", task, (SHELL, FINISH), steps, **fields)


def decide(gateway: ModelGateway, script: object, **fields: Any) -> Decision:
    with ThreadPoolExecutor(1) as pool:  # as in the planner, whose threads have no event loop
        return pool.submit(gateway.decide, context(script, **fields)).result()


def summarise(gateway: ModelGateway, script: object, **fields: Any) -> Summary:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(gateway.summarise, SummaryRequest(context(script, **fields), most_chars=4000)).result()


def chat(gateway: ModelGateway, **fields: Any) -> dict[str, Any]:
    return asyncio.run(gateway.chat({"model": "fast", "messages": [{"role": "user", "content": "hello there"}]} | fields))


def stream(gateway: ModelGateway, **fields: Any) -> list[dict[str, Any]]:
    async def collect() -> list[dict[str, Any]]:
        body = {"model": "fast", "messages": [{"role": "user", "content": "hello there"}]} | fields
        return [chunk async for chunk in gateway.chat_stream(body)]

    return asyncio.run(collect())


def test_tracks_come_first_and_lead_to_models(gateway: ModelGateway) -> None:
    infos = gateway.models()
    assert [info.id for info in infos if info.track] == ["fast", "deep"]
    assert [info.track for info in infos] == sorted((info.track for info in infos), reverse=True)
    models = {info.id for info in infos if not info.track}
    assert all(set(info.targets) <= models for info in infos)


def test_a_decision_says_what_to_do_who_said_so_and_what_it_cost(gateway: ModelGateway) -> None:
    decision = decide(gateway, [LOOK, DONE])
    assert (decision.thought, decision.reflection) == ("look", "")
    assert [(call.tool, call.arguments) for call in decision.calls] == [("shell", {"command": "ls -l 'ä'"})]
    assert decision.model in {info.id for info in gateway.models() if not info.track}
    assert decision.usage.input_tokens > 0
    assert decision.usage.output_tokens > 0
    assert decision.latency_s >= 0


def test_the_same_context_gets_the_same_decision_and_a_longer_one_the_next(gateway: ModelGateway) -> None:
    assert decide(gateway, [LOOK, DONE]).calls[0].arguments == decide(gateway, [LOOK, DONE]).calls[0].arguments
    assert decide(gateway, [LOOK, DONE], past=1).calls[0].tool == "finish"


def test_a_reflection_is_given_when_asked_for(gateway: ModelGateway) -> None:
    assert decide(gateway, [LOOK, DONE], past=1, reflect=True).reflection == "I was wrong."


def test_models_say_how_much_they_can_read(gateway: ModelGateway) -> None:
    assert all(info.context_tokens >= 1024 for info in gateway.models())


def test_a_summary_is_text_and_says_who_wrote_it_and_what_it_cost(gateway: ModelGateway) -> None:
    summary = summarise(gateway, [LOOK, LOOK, {**DONE, "text": "Goal: look. Done: twice."}], past=2)
    assert summary.text == "Goal: look. Done: twice."
    assert summary.model in {info.id for info in gateway.models() if not info.track}
    assert summary.usage.input_tokens > 0
    assert summary.usage.output_tokens > 0
    assert summary.latency_s >= 0


def test_after_a_summary_the_job_goes_on_where_it_was(gateway: ModelGateway) -> None:
    script = [LOOK, LOOK, LOOK, DONE]
    assert decide(gateway, script, past=1, summary="I looked twice.", summarised=2).calls[0].tool == "finish"
    assert summarise(gateway, script, past=1, summary="I looked twice.", summarised=2).text == "What was done in 3 steps."


def test_an_empty_summary_is_malformed_and_paid_for(gateway: ModelGateway) -> None:
    with pytest.raises(MalformedAction) as malformed:
        summarise(gateway, [{"text": ""}])
    assert malformed.value.usage.input_tokens > 0
    assert malformed.value.model


def test_an_answer_without_an_action_is_malformed_and_paid_for(gateway: ModelGateway) -> None:
    with pytest.raises(MalformedAction) as malformed:
        decide(gateway, [{"text": ""}])
    assert malformed.value.usage.input_tokens > 0
    assert malformed.value.model


@pytest.mark.parametrize(
    ("failure", "error"), [("rate_limited", ModelRateLimited), ("server_error", ModelUnavailable), ("context_too_long", ContextTooLong)]
)
def test_failures_are_of_the_model_family(gateway: ModelGateway, failure: str, error: type[ModelError]) -> None:
    with pytest.raises(error):
        decide(gateway, [{"error": failure}])
    with pytest.raises(error):
        summarise(gateway, [{"error": failure}])


def test_unknown_names_are_refused(gateway: ModelGateway) -> None:
    with pytest.raises(UnknownModel):
        decide(gateway, [LOOK], model="gpt-17")
    with pytest.raises(UnknownModel):
        summarise(gateway, [LOOK], model="gpt-17")
    with pytest.raises(UnknownModel):
        chat(gateway, model="gpt-17")


def test_a_chat_without_messages_is_refused(gateway: ModelGateway) -> None:
    with pytest.raises(InvalidRequest) as wrong:
        chat(gateway, messages=[])
    assert wrong.value.param == "messages"


def test_chat_and_stream_say_the_same(gateway: ModelGateway) -> None:
    whole = chat(gateway)
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["finish_reason"] == "stop"
    chunks = stream(gateway, stream_options={"include_usage": True})
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert text == whole["choices"][0]["message"]["content"] == "You said: hello there"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[-1]["usage"]["total_tokens"] == whole["usage"]["total_tokens"] > 0
    assert all(not chunk.get("usage") for chunk in stream(gateway))
