"""The scripted model server as a real process, spoken to by the `openai` package."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

TOOLS = [{"type": "function", "function": {"name": "shell", "parameters": {"type": "object"}}}]
SCRIPT = [
    {"calls": [{"tool": "shell", "arguments": {"command": "a"}}, {"tool": "shell", "arguments": {"command": "b"}}], "thought": "both"},
    {"tool": "finish", "arguments": {"answer": "done"}},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    script: Path = tmp_path_factory.mktemp("script") / "script.json"
    script.write_text(json.dumps(SCRIPT))
    command = [sys.executable, "-m", "dualtrack.testing.model_server", "--port", "0", "--script", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["base_url"]
        process.terminate()


@pytest.fixture
def client(server: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server, api_key="any", max_retries=0, timeout=60) as client:
        yield client


def create(client: openai.OpenAI, **body: Any) -> Any:
    return client.chat.completions.create(**body)


def test_health_and_models(server: str, client: openai.OpenAI) -> None:
    assert httpx.get(server.removesuffix("/v1") + "/health", timeout=60).json() == {"status": "ok"}
    assert [model.id for model in client.models.list()] == ["scripted"]


def test_chat_plain_and_streamed(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "hello there"}]
    whole = create(client, model="m", messages=messages)
    assert whole.choices[0].message.content == "You said: hello there"
    chunks = list(create(client, model="m", messages=messages, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices) == "You said: hello there"
    assert chunks[-1].usage.total_tokens > 0


def test_native_calls_follow_the_count_of_assistant_messages(client: openai.OpenAI) -> None:
    messages: list[dict[str, object]] = [{"role": "user", "content": "go"}]
    first = create(client, model="m", messages=messages, tools=TOOLS)
    calls = first.choices[0].message.tool_calls
    assert [json.loads(call.function.arguments) for call in calls] == [{"command": "a"}, {"command": "b"}]
    assert first.choices[0].finish_reason == "tool_calls"
    messages.append({"role": "assistant", "content": "both"})
    second = create(client, model="m", messages=messages, tools=TOOLS)
    assert second.choices[0].message.tool_calls[0].function.name == "finish"


def test_json_actions(client: openai.OpenAI) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "action", "schema": {"type": "object"}}}
    answer = create(client, model="m", messages=[{"role": "user", "content": "go"}], response_format=schema)
    assert json.loads(answer.choices[0].message.content) == {"thought": "both", "tool": "shell", "arguments": {"command": "a"}}


def test_scripted_failures_then_an_answer(client: openai.OpenAI) -> None:
    script = json.dumps([{"tool": "finish", "error": "rate_limited", "times": 1}])
    messages = [{"role": "user", "content": f"```script\n{script}\n```"}]
    with pytest.raises(openai.RateLimitError):
        create(client, model="m", messages=messages, tools=TOOLS)
    assert create(client, model="m", messages=messages, tools=TOOLS).choices[0].message.tool_calls[0].function.name == "finish"


@pytest.mark.parametrize(
    ("failure", "error"),
    [("server_error", openai.InternalServerError), ("cut", openai.APIConnectionError), ("context_too_long", openai.BadRequestError)],
)
def test_lasting_failures(client: openai.OpenAI, failure: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        create(client, model="m", messages=[{"role": "user", "content": f'```script\n[{{"error": "{failure}"}}]\n```'}])


def test_a_broken_request_is_a_400(server: str) -> None:
    answer = httpx.post(f"{server}/chat/completions", content=b"{", timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_request"
