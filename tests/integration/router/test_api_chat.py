"""The fast track over HTTP, by the `openai` package and by hand."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import httpx
import openai
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dualtrack.domain.errors import ModelRateLimited, ModelTimeout, ModelUnavailable
from dualtrack.testing.scripted_model import ScriptedModel
from dualtrack.testing.waiting import wait_until

from .conftest import Api, MakeApi

HELLO: list[dict[str, str]] = [{"role": "user", "content": "hello there"}]
CHAT = "/v1/chat/completions"


@pytest.fixture
def openai_client(api: Api, key: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=api.url + "/v1", api_key=key, max_retries=0, timeout=60) as client:
        yield client


def create(client: openai.OpenAI, **body: Any) -> Any:
    return client.chat.completions.create(**body)


def test_the_openai_package_works_unchanged(openai_client: openai.OpenAI) -> None:
    assert [model.id for model in openai_client.models.list()] == ["fast", "deep", "scripted"]
    assert openai_client.models.retrieve("fast").id == "fast"
    whole = create(openai_client, model="fast", messages=HELLO)
    assert whole.choices[0].message.content == "You said: hello there"
    assert whole.usage.total_tokens > 0
    chunks = list(create(openai_client, model="scripted", messages=HELLO, stream=True))
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "You said: hello there"
    assert all(chunk.choices for chunk in chunks)  # no usage chunk unless asked for
    chunks = list(create(openai_client, model="fast", messages=HELLO, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].usage.total_tokens > 0


def test_the_openai_package_understands_our_errors(api: Api, openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        create(openai_client, model="nope", messages=HELLO)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    assert missing.value.request_id
    with openai.OpenAI(base_url=api.url + "/v1", api_key="dt_wrong", max_retries=0) as stranger, pytest.raises(openai.AuthenticationError):
        create(stranger, model="fast", messages=HELLO)


@pytest.mark.parametrize("stream", [False, True])
def test_unknown_model(client: httpx.Client, stream: bool) -> None:
    answer = client.post(CHAT, json={"model": "nope", "messages": HELLO, "stream": stream})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"messages": ["x"]}, "messages.0"),
        ({"messages": [{"role": "user", "content": [{"type": "bogus"}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.image_url"),
        ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages.0.tool_calls"),
        ({"messages": [{"role": "user", "content": "a\x00"}]}, "messages.0.content"),
        ({"model": 5}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"temperature": 9}, "temperature"),
        ({"stop": 5}, "stop"),
        ({"extra": {"deep": ["\x00"]}}, "extra.deep.0"),
    ],
)
def test_a_wrong_field_is_named(client: httpx.Client, fields: dict[str, Any], param: str) -> None:
    answer = client.post(CHAT, json={"model": "fast", "messages": HELLO} | fields)
    body = answer.json()["error"]
    assert (answer.status_code, body["code"], body["param"]) == (400, "invalid_request", param)
    assert param in body["message"]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999", r'"\udc00"'])
def test_what_is_no_json_value_is_refused(client: httpx.Client, value: str) -> None:
    raw = f'{{"model": "fast", "messages": [{{"role": "user", "content": "x"}}], "anything": {value}}}'
    answer = client.post(CHAT, content=raw, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "anything")


class Gateway(ScriptedModel):
    """Answers as told."""

    def __init__(self, chunks: list[dict[str, Any] | Exception | float]) -> None:
        super().__init__()
        self.chunks = chunks
        self.bodies: list[Mapping[str, Any]] = []
        self.closed = 0
        self.cancelled = 0

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self.bodies.append(body)
        try:
            for chunk in self.chunks:
                if isinstance(chunk, Exception):
                    raise chunk
                if isinstance(chunk, float):
                    await asyncio.sleep(chunk)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return {"id": "x", "model": "fast", "choices": []}

    async def chat_stream(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        self.bodies.append(body)
        try:
            for chunk in self.chunks:
                if isinstance(chunk, Exception):
                    raise chunk
                if isinstance(chunk, float):
                    await asyncio.sleep(chunk)
                else:
                    yield chunk
        finally:
            self.closed += 1


CHUNK: dict[str, Any] = {
    "id": "x",
    "object": "chat.completion.chunk",
    "created": 0,
    "model": "scripted",
    "choices": [{"index": 0, "delta": {"content": "a"}}],
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (ModelRateLimited("Slow down."), 429, "model_rate_limited"),
        (ModelTimeout("Too slow."), 504, "model_timeout"),
        (ModelUnavailable("Down."), 503, "model_unavailable"),
        (RuntimeError("secret detail"), 500, "internal_error"),
    ],
)
def test_a_failure_before_the_first_chunk_is_an_ordinary_error(
    make_api: MakeApi, stream: bool, failure: Exception, status: int, code: str
) -> None:
    with make_api(gateway=Gateway([failure])) as api, api.client(api.new_key()[1]) as client:
        answer = client.post(CHAT, json={"model": "fast", "messages": HELLO, "stream": stream})
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert "secret" not in answer.text
        if status == 500:
            assert answer.headers["x-request-id"] in answer.json()["error"]["message"]
        else:
            assert answer.headers["retry-after"]


@pytest.mark.parametrize(("failure", "code"), [(ModelUnavailable("Cut."), "model_unavailable"), (RuntimeError("secret"), "internal_error")])
def test_a_failure_in_the_middle_is_an_error_event(make_api: MakeApi, failure: Exception, code: str) -> None:
    gateway = Gateway([CHUNK, failure])
    with make_api(gateway=gateway) as api:
        key = api.new_key()[1]
        with api.client(key) as client:
            answer = client.post(CHAT, json={"model": "fast", "messages": HELLO, "stream": True})
            assert answer.status_code == 200
            frames = answer.text.strip().split("\n\n")
            assert json.loads(frames[0].removeprefix("data: ")) == CHUNK
            assert frames[1].startswith("event: error\ndata: ")
            assert json.loads(frames[1].split("data: ")[1])["error"]["code"] == code
            assert "[DONE]" not in answer.text
            assert "secret" not in answer.text
        with openai.OpenAI(base_url=api.url + "/v1", api_key=key, max_retries=0) as package, pytest.raises(openai.APIError):
            list(create(package, model="fast", messages=HELLO, stream=True))
    assert gateway.closed == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_ends_the_upstream_call(make_api: MakeApi, stream: bool) -> None:
    gateway = Gateway([*([CHUNK] if stream else []), 3600.0])
    with make_api(gateway=gateway) as api:
        body = json.dumps({"model": "fast", "messages": HELLO, "stream": stream})
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.new_key()[1]}\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", api.server.port), timeout=60) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            wait_until(lambda: gateway.bodies, "the call")
        wait_until(lambda: gateway.closed + gateway.cancelled == 1, "its end")
        with api.client(None) as client:
            wait_until(lambda: 'status="499"' in client.get("/metrics").text, "its count")


def test_fields_nobody_here_knows_reach_the_gateway(make_api: MakeApi) -> None:
    gateway = Gateway([CHUNK])
    with make_api(gateway=gateway) as api, api.client(api.new_key()[1]) as client:
        body = {
            "model": "fast",
            "messages": HELLO,
            "brand_new": {"a": [1]},
            "stream": True,
            "stream_options": {"include_obfuscation": False},
        }
        client.post(CHAT, json=body)
        assert gateway.bodies == [body | {"stream_options": {"include_obfuscation": False, "include_usage": True}}]


def test_spans_and_metrics_tell_of_a_chat(make_api: MakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    with make_api() as api:
        tenant, key = api.new_key()
        with api.client(key) as client:
            for stream in (False, True):
                headers = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
                client.post(CHAT, json={"model": "scripted", "messages": HELLO, "stream": stream}, headers=headers)
            counted = f'dualtrack_http_requests_total{{method="POST",route="{CHAT}",status="200"}} 2.0'
            wait_until(lambda: counted in client.get("/metrics").text, "both are counted")  # a stream a moment after its end was sent
            metrics = client.get("/metrics").text
    servers = [span for span in exporter.get_finished_spans() if span.name == f"POST {CHAT}"]
    chats = [span for span in exporter.get_finished_spans() if span.name == "chat scripted"]
    assert len(servers) == len(chats) == 2
    for server, chat in zip(servers, chats, strict=True):
        assert server.context.trace_id == chat.context.trace_id == int("ab" * 16, 16)
        assert server.parent is not None
        assert server.parent.span_id == int("cd" * 8, 16)
        assert chat.parent is not None
        assert chat.parent.span_id == server.context.span_id
        assert dict(server.attributes or {}) == {
            "http.request.method": "POST",
            "url.path": CHAT,
            "url.scheme": "http",
            "http.route": CHAT,
            "http.response.status_code": 200,
        }
        assert chat.attributes is not None
        assert chat.attributes["gen_ai.operation.name"] == "chat"
        assert chat.attributes["gen_ai.response.model"] == "scripted"
        assert chat.attributes["dualtrack.tenant.id"] == tenant
        assert chat.attributes["gen_ai.usage.output_tokens"] == len("You said: hello there") // 4
    assert f'dualtrack_chat_tokens_total{{direction="output",model="scripted"}} {2 * 5.0}' in metrics
