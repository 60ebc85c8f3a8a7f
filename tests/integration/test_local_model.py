"""The local model's server process. The tests with real weights use those in the cache, and fetch the small ones where
TEST_FETCH_WEIGHTS is set.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from dualtrack.domain.errors import ModelUnavailable
from dualtrack.domain.tool import Effect, ToolSpec
from dualtrack.models.catalog import build_catalog
from dualtrack.models.gateway import LiteLLMGateway
from dualtrack.models.local_server import LocalModelServer
from dualtrack.models.port import DecisionRequest, PastCall, PastStep, SummaryRequest
from dualtrack.models.weights import CATALOGUE, local_cache
from dualtrack.settings import LocalModelSettings, ModelsSettings

SMALL = "qwen2.5-coder-0.5b"
EXECUTE = ToolSpec(
    "execute_python",
    "Run a Python program and return what it prints.",
    {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"], "additionalProperties": False},
    Effect.WORKSPACE,
)
FINISH = ToolSpec(
    "finish",
    "End the job with the final answer.",
    {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"], "additionalProperties": False},
    Effect.CONTROL,
)


def here(name: str) -> bool:
    return (local_cache(None) / CATALOGUE[name].file_name).exists()


@pytest.fixture(scope="module")
def server() -> Iterator[LocalModelServer]:
    source = next((name for name in (SMALL, *CATALOGUE) if here(name)), None)
    if source is None and not os.environ.get("TEST_FETCH_WEIGHTS"):
        pytest.skip("no weights in the cache: `make demo` fetches them, or set TEST_FETCH_WEIGHTS=1")
    with LocalModelServer(LocalModelSettings(source=source or SMALL, context_tokens=4096, slots=1)) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(server: LocalModelServer) -> LiteLLMGateway:
    return LiteLLMGateway(build_catalog(ModelsSettings(), {}), environment={}, local=server)


def test_a_file_that_is_no_model_is_told_as_such(tmp_path: Path) -> None:
    junk = tmp_path / "junk.gguf"
    junk.write_bytes(b"no model at all")
    server = LocalModelServer(LocalModelSettings(source=str(junk), context_tokens=2048, slots=1))
    with pytest.raises(ModelUnavailable, match="junk"):
        server.ensure()
    assert server.pid is None


@pytest.mark.timeout(900)
def test_it_chats_and_counts_its_tokens(gateway: LiteLLMGateway) -> None:
    question = {"model": "fast", "messages": [{"role": "user", "content": "What is the capital of France? One word."}], "temperature": 0}
    answer = asyncio.run(gateway.chat(question | {"max_tokens": 16}))
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert answer["model"] == "local"
    assert answer["usage"]["completion_tokens"] > 0

    async def stream() -> list[dict[str, object]]:
        return [chunk async for chunk in gateway.chat_stream(question | {"max_tokens": 4, "stream_options": {"include_usage": True}})]

    assert asyncio.run(stream())[-1]["usage"]


@pytest.mark.timeout(900)
def test_it_acts_by_json(gateway: LiteLLMGateway) -> None:
    request = DecisionRequest(
        model="deep", system="You do jobs with tools.", task="Compute 17*23 with execute_python.", tools=(EXECUTE, FINISH), steps=()
    )
    decision = gateway.decide(request)
    (call,) = decision.calls
    assert call.tool == "execute_python"
    assert isinstance(call.arguments["code"], str)
    assert decision.usage.cost_usd == 0


@pytest.mark.timeout(900)
def test_it_writes_a_summary_to_go_on_from(gateway: LiteLLMGateway) -> None:
    call = PastCall("execute_python", {"code": "print(sum(range(101)))"}, ok=True, observation="5050")
    context = DecisionRequest(
        model="deep",
        system="You do jobs with tools.",
        task="Add the numbers from 0 to 100 and write the total into total.txt.",
        tools=(EXECUTE, FINISH),
        steps=[PastStep("I add them up.", (call,))],
    )
    summary = gateway.summarise(SummaryRequest(context, most_chars=1600))
    assert "5050" in summary.text
    assert "total.txt" in summary.text
    assert summary.usage.output_tokens > 0


@pytest.mark.timeout(900)
def test_it_wants_its_key_and_comes_back_after_a_crash(server: LocalModelServer, gateway: LiteLLMGateway) -> None:
    access = server.ensure()
    body = {"model": "local", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    assert httpx.post(f"{access.base_url}/chat/completions", content=json.dumps(body), timeout=60).status_code == 401
    first = server.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    answer = asyncio.run(gateway.chat(body))
    assert answer["choices"]
    assert server.pid not in {None, first}
