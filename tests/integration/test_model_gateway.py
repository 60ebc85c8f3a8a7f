"""The gateway against the scripted model server in a process of its own, through LiteLLM and real sockets."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any, Literal

import httpx
import pytest

from dualtrack.domain.errors import (
    ContextTooLong,
    InvalidRequest,
    MalformedAction,
    ModelRateLimited,
    ModelRefusedRequest,
    ModelTimeout,
    ModelUnavailable,
    UnknownModel,
)
from dualtrack.domain.tool import Effect, ToolSpec
from dualtrack.models.catalog import build_catalog
from dualtrack.models.gateway import LiteLLMGateway
from dualtrack.models.port import Decision, DecisionRequest, PastCall, PastStep
from dualtrack.models.retries import Pause
from dualtrack.settings import ModelSettings, ModelsSettings

SHELL = ToolSpec(
    "shell", "Run.", {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}, Effect.WORKSPACE
)
FINISH = ToolSpec(
    "finish", "Done.", {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}, Effect.CONTROL
)
STEPS = [{"tool": "shell", "arguments": {"command": "ls"}, "thought": "look"}, {"tool": "finish", "arguments": {"answer": "ok"}}]
UNREADABLE_CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{not json"}}
DEAD = "http://127.0.0.1:9/v1"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with subprocess.Popen([sys.executable, "-m", "dualtrack.testing.model_server"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["base_url"]
        process.terminate()


def gateway(server: str, *, action_format: Literal["native", "json"] = "native", **fields: Any) -> LiteLLMGateway:
    house = ModelSettings(litellm_model="openai/house", api_base=server, action_format=action_format, **fields)
    dead = ModelSettings(litellm_model="openai/dead", api_base=DEAD, retries=0)
    settings = ModelsSettings(models={"house": house, "dead": dead}, tracks={"fast": ["dead", "house"], "deep": ["house"], "off": ["dead"]})
    return LiteLLMGateway(build_catalog(settings, {}), environment={}, pause=Pause(random.Random(1), first_s=0.001))


def request(script: object, *, steps: int = 0, model: str = "deep", reflect: bool = False, timeout_s: float = 30) -> DecisionRequest:
    past = [PastStep("look", (PastCall("shell", {"command": "ls"}, ok=True, observation="a"),))] * steps
    task = f"Do it.\n```script\n{json.dumps(script)}\n```"
    return DecisionRequest(model, "Be good.", task, (SHELL, FINISH), past, reflect=reflect, timeout_s=timeout_s)


def decide(port: LiteLLMGateway, asked: DecisionRequest) -> Decision:
    """As the planner does, in a worker thread: in a main thread without an event loop LiteLLM makes one and leaves it open."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(port.decide, asked).result()


def chat_request(text: str = "hello there", **fields: Any) -> dict[str, Any]:
    return {"model": "deep", "messages": [{"role": "user", "content": text}], **fields}


def failing(failure: str, **fields: object) -> str:
    return f"```script\n{json.dumps([{'error': failure, **fields}])}\n```"


async def streamed(port: LiteLLMGateway, body: dict[str, Any]) -> list[dict[str, Any]]:
    return [chunk async for chunk in port.chat_stream(body)]


@pytest.mark.parametrize("action_format", ["native", "json"])
def test_decisions_step_by_step_in_both_formats(server: str, action_format: Literal["native", "json"]) -> None:
    port = gateway(server, action_format=action_format, input_usd_per_million=Decimal(3), output_usd_per_million=Decimal(15))
    first = decide(port, request(STEPS))
    assert (first.thought, [(call.tool, call.arguments) for call in first.calls]) == ("look", [("shell", {"command": "ls"})])
    assert first.model == "house"
    assert first.usage.cost_usd == (first.usage.input_tokens * Decimal(3) + first.usage.output_tokens * Decimal(15)) / 1_000_000 > 0
    assert first.latency_s > 0
    second = decide(port, request(STEPS, steps=1))
    assert [(call.tool, call.arguments) for call in second.calls] == [("finish", {"answer": "ok"})]


@pytest.mark.parametrize("action_format", ["native", "json"])
def test_a_reflection_comes_when_asked_for(server: str, action_format: Literal["native", "json"]) -> None:
    script = [STEPS[0], {"tool": "finish", "arguments": {"answer": "x"}, "reflection": "I was wrong."}]
    assert decide(gateway(server, action_format=action_format), request(script, steps=1, reflect=True)).reflection == "I was wrong."


def test_a_malformed_answer_carries_what_was_said_and_spent(server: str) -> None:
    port = gateway(server, action_format="json")
    with pytest.raises(MalformedAction, match="JSON object") as malformed:
        decide(port, request([{"text": "I would rather talk."}]))
    assert malformed.value.raw == "I would rather talk."
    assert malformed.value.model == "house"
    assert malformed.value.usage.output_tokens > 0


def test_passing_failures_are_retried(server: str) -> None:
    script = [{"tool": "finish", "arguments": {"answer": "x"}, "error": "rate_limited", "times": 2}]
    assert decide(gateway(server, retries=2), request(script)).calls[0].tool == "finish"


def test_a_cut_connection_is_tried_once_more_without_retries(server: str) -> None:
    script = [{"tool": "finish", "arguments": {"answer": "cut"}, "error": "cut", "times": 1}]
    assert decide(gateway(server, retries=0), request(script)).calls[0].tool == "finish"


@pytest.mark.parametrize(
    ("failure", "error"), [("rate_limited", ModelRateLimited), ("server_error", ModelUnavailable), ("context_too_long", ContextTooLong)]
)
def test_lasting_failures_come_out_as_ours(server: str, failure: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        decide(gateway(server, retries=1), request([{"error": failure}]))
    with pytest.raises(error):
        asyncio.run(gateway(server, retries=1).chat(chat_request(failing(failure))))


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [UNREADABLE_CALL]}]},
        {"response_format": {"type": "json_schema", "json_schema": 5}},
        {"tools": [{"type": "function"}]},
    ],
)
def test_what_can_not_be_put_in_a_providers_terms_is_no_outage(fields: dict[str, Any]) -> None:
    """LiteLLM's own code breaks over it, and calls that a failing server."""
    house = ModelSettings(litellm_model="anthropic/house", api_base=DEAD, retries=0)
    catalog = build_catalog(ModelsSettings(models={"house": house}, tracks={"fast": ["house"], "deep": ["house"]}), {})
    port = LiteLLMGateway(catalog, environment={})
    with pytest.raises(ModelUnavailable):  # what can be put so is sent, and nobody is there
        asyncio.run(port.chat(chat_request()))
    with pytest.raises(ModelRefusedRequest) as failed:
        asyncio.run(port.chat(chat_request() | fields))
    assert failed.value.message.endswith("it can't be put in its provider's terms: check the messages, tools and parameters")


def test_a_silent_model_times_out_within_the_request(server: str) -> None:
    with pytest.raises(ModelTimeout):
        decide(gateway(server, retries=3), request([{"error": "hang"}], timeout_s=0.5))


def test_a_track_falls_back_to_its_next_model(server: str) -> None:
    port = gateway(server)
    assert decide(port, request(STEPS, model="fast")).model == "house"
    assert asyncio.run(port.chat(chat_request() | {"model": "fast"}))["model"] == "house"
    chunks = asyncio.run(streamed(port, chat_request() | {"model": "fast"}))
    assert {chunk["model"] for chunk in chunks} == {"house"}
    with pytest.raises(ModelUnavailable):
        decide(port, request(STEPS, model="off"))


def test_chat_plain_and_streamed(server: str) -> None:
    port = gateway(server)
    whole = asyncio.run(port.chat(chat_request(api_base=DEAD, unknown="dropped")))
    assert (whole["object"], whole["model"]) == ("chat.completion", "house")
    assert whole["choices"][0]["message"]["content"] == "You said: hello there"
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert port.usage(whole["model"], whole["usage"]).total_tokens > 0
    chunks = asyncio.run(streamed(port, chat_request(stream_options={"include_usage": True})))
    assert "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]) == "You said: hello there"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]][-1] == "stop"
    assert chunks[-1]["usage"]["total_tokens"] > 0
    assert chunks[-1]["choices"] == []
    assert all("usage" not in chunk for chunk in asyncio.run(streamed(port, chat_request())))


def test_tool_calls_pass_through_chat(server: str) -> None:
    tools = [{"type": "function", "function": {"name": "shell", "description": "Run.", "parameters": dict(SHELL.parameters)}}]
    text = f"```script\n{json.dumps(STEPS)}\n```"
    answer = asyncio.run(gateway(server).chat(chat_request(text, tools=tools)))
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("shell", {"command": "ls"})
    chunks = asyncio.run(streamed(gateway(server), chat_request(text, tools=tools)))
    deltas = [call for chunk in chunks for choice in chunk["choices"] for call in choice["delta"].get("tool_calls") or ()]
    assert "".join(call["function"]["arguments"] for call in deltas) == '{"command": "ls"}'


def test_a_stream_cut_in_the_middle_raises_ours(server: str) -> None:
    with pytest.raises(ModelUnavailable):
        asyncio.run(streamed(gateway(server, retries=0), chat_request(failing("cut"))))


def test_leaving_a_stream_closes_the_connection_to_the_provider() -> None:
    command = [sys.executable, "-m", "dualtrack.testing.model_server", "--chunk-delay-s", "0.02"]

    async def leave(base: str) -> int:
        chunks = gateway(base).chat_stream(chat_request("word " * 2000))
        assert (await anext(chunks))["object"] == "chat.completion.chunk"
        await chunks.aclose()  # type: ignore[attr-defined]  # an async generator behind the port's AsyncIterator
        async with httpx.AsyncClient(timeout=60) as client, asyncio.timeout(60):
            while True:
                stats = (await client.get(base.removesuffix("/v1") + "/stats")).json()
                if stats["disconnects"]:
                    return int(stats["disconnects"])

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert asyncio.run(leave(json.loads(process.stdout.readline())["base_url"])) == 1
        finally:
            process.terminate()


def test_names_and_bodies_are_checked_before_anything_is_sent(server: str) -> None:
    port = gateway(server)
    with pytest.raises(UnknownModel):
        decide(port, request(STEPS, model="gpt-17"))
    with pytest.raises(UnknownModel):
        asyncio.run(port.chat(chat_request() | {"model": "gpt-17"}))
    with pytest.raises(InvalidRequest, match="messages"):
        asyncio.run(port.chat({"model": "deep"}))
    with pytest.raises(InvalidRequest, match="temperature"):
        asyncio.run(streamed(port, chat_request(temperature="hot")))
