from __future__ import annotations

import json
import random
from collections.abc import Callable

import httpx
import pytest

from dualtrack.domain.errors import (
    ContextTooLong,
    InvalidRequest,
    ModelError,
    ModelRateLimited,
    ModelRefusedRequest,
    ModelTimeout,
    ModelUnavailable,
)
from dualtrack.models.chat_body import chat_body
from dualtrack.models.errors import classify
from dualtrack.models.retries import Pause, Tries, most_telling

CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


class ProviderError(Exception):
    def __init__(self, message: str, status_code: int | None = None, retry_after: str | None = None) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.response = type("Response", (), {"headers": {"retry-after": retry_after} if retry_after else {}})()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ProviderError("slow down", 429), ModelRateLimited),
        (ProviderError("boom", 500), ModelUnavailable),
        (ProviderError("overloaded", 529), ModelUnavailable),
        (ProviderError("late", 408), ModelTimeout),
        (ProviderError("bad key", 401), ModelRefusedRequest),
        (ProviderError("no such model", 404), ModelRefusedRequest),
        (ProviderError("This model's maximum context length is 8192", 400), ContextTooLong),
        (ProviderError("request (20 tokens) exceeds the available context size (10 tokens)", 400), ContextTooLong),
        (TimeoutError(), ModelTimeout),
        (ConnectionResetError("reset"), ModelUnavailable),
        (TypeError("unexpected"), ModelRefusedRequest),
        (ModelTimeout("ours"), ModelTimeout),
    ],
)
def test_failures_are_told_apart(error: Exception, kind: type[ModelError]) -> None:
    assert type(classify(error, "house")) is kind


class ServerError(Exception):
    """As LiteLLM has them: with a status, whatever they come of."""

    status_code = 500


def wrapped(cause: Exception, status: int = 500) -> Exception:
    error = ServerError(f"litellm.APIConnectionError: {cause}\nTraceback (most recent call last): …")
    error.status_code, error.__cause__ = status, cause
    return error


def transform_response() -> object:
    answer: dict[str, object] = {}
    return answer["content"]


def unreadable(read: Callable[[], object]) -> Exception:
    try:
        read()
    except Exception as error:
        return wrapped(error)
    raise AssertionError


@pytest.mark.parametrize("status", [500, 400])
@pytest.mark.parametrize(
    "cause",
    [
        KeyError("image_url"),
        TypeError("'int' object is not iterable"),
        AttributeError("'str' object has no attribute 'get'"),
        Exception("Invalid user message at index 0"),
        ValueError("1 validation error for Message"),
        json.JSONDecodeError("Expecting value", "x", 0),
    ],
)
def test_what_the_gateways_own_code_raises_is_no_outage_and_is_not_quoted(cause: Exception, status: int) -> None:
    for error in (wrapped(cause, status), *([cause] if type(cause) is not Exception else [])):
        found = classify(error, "house")
        assert type(found) is ModelRefusedRequest
        assert found.retry_after_s is None
        assert found.message.startswith("house refused the request: ")
        assert "check the messages" in found.message
        assert str(cause) not in found.message


@pytest.mark.parametrize("read", [transform_response, httpx.Response(200, text="<html>").json])
def test_an_answer_that_can_not_be_read_is_no_fault_of_the_request(read: Callable[[], object]) -> None:
    found = classify(unreadable(read), "house")
    assert type(found) is ModelUnavailable
    assert found.message == "house is not available: what it answered can't be read"


def test_a_connection_that_failed_in_the_midst_of_our_own_code_is_an_outage() -> None:
    lost = wrapped(ConnectionResetError("reset"))
    assert lost.__cause__ is not None
    lost.__cause__.__context__ = KeyError("pool")
    assert type(classify(lost, "house")) is ModelUnavailable


@pytest.mark.parametrize(
    ("asked", "seconds"), [("17", 17.0), ("0.2", 0.2), ("-3", 0.0), ("inf", None), ("nan", None), ("soon", None), (None, None)]
)
def test_the_pause_that_a_provider_asks_for_is_passed_on(asked: str | None, seconds: float | None) -> None:
    assert classify(ProviderError("slow down", 429, asked), "house").retry_after_s == seconds
    assert classify(ProviderError("no", 400, asked), "house").retry_after_s is None  # waiting won't help


def test_messages_name_the_model_hold_no_key_and_stay_short() -> None:
    said = classify(
        ProviderError("litellm.AuthenticationError: AuthenticationError: Incorrect key sk-abcdefgh12345678. " + "x" * 999, 401), "house"
    )
    assert said.message.startswith("house refused the request: ")
    assert "sk-abcdefgh" not in said.message
    assert len(said.message) < 400


def test_a_cut_connection_is_tried_once_more_even_without_retries() -> None:
    tries = iter(Tries(0))
    assert next(tries).another(ModelUnavailable("cut"))
    assert not next(tries).another(ModelUnavailable("cut"))
    assert not next(iter(Tries(0))).another(ModelRateLimited("slow down"))
    assert not next(iter(Tries(5))).another(ModelRefusedRequest("bad key"))


def test_pauses_double_within_bounds_and_obey_the_provider() -> None:
    pause = Pause(random.Random(1), first_s=1, longest_s=8)
    for number, most in enumerate((1, 2, 4, 8, 8)):
        assert most / 2 <= pause.seconds(number, ConnectionError()) <= most
    assert pause.seconds(0, ProviderError("", 429, retry_after="3")) == 3
    assert pause.seconds(0, ProviderError("", 429, retry_after="900")) == 8
    assert pause.seconds(0, ProviderError("", 429, retry_after="Wed, 21 Oct 2026 07:28:00 GMT")) <= 1


def test_of_several_failures_a_passing_one_is_told() -> None:
    limited, refused = ModelRateLimited("later"), ModelRefusedRequest("never")
    assert most_telling([refused, limited, refused]) is limited
    assert most_telling([refused, ModelRefusedRequest("other")]) is refused


def test_only_openais_fields_reach_a_model() -> None:
    body = chat_body(
        {
            "model": "fast",
            "messages": [{"role": "user", "content": "hi", "name": "Ann"}],
            "api_base": "http://evil",
            "mock_response": "x",
            "max_tokens": 9_999_999,
            "temperature": 1,
            "stream": True,
        }
    )
    assert body.provider_fields(output_tokens=100, local=False) == {
        "messages": [{"role": "user", "content": "hi", "name": "Ann"}],
        "max_tokens": 100,
        "temperature": 1,
    }


def test_the_local_model_is_told_what_it_is_unless_the_caller_does() -> None:
    plain = chat_body({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    assert [m["role"] for m in plain.provider_fields(output_tokens=9, local=True)["messages"]] == ["system", "user"]
    told = chat_body({"model": "m", "messages": [{"role": "developer", "content": "x"}, {"role": "user", "content": "hi"}]})
    assert [m["role"] for m in told.provider_fields(output_tokens=9, local=True)["messages"]] == ["developer", "user"]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "x"}, "role"),
        ({"role": 5, "content": "x"}, "role"),
        ({"role": ["user"], "content": "x"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": None}, "content"),
        ({"role": "user", "content": "x", "name": 5}, "name"),
        ({"role": "user", "content": [{"type": "bogus"}]}, "content.0.type"),
        ({"role": "user", "content": [{"text": "x"}]}, "content.0.type"),
        ({"role": "user", "content": [{"type": "text", "text": "x"}, "x"]}, "content.1"),
        ({"role": "user", "content": [{"type": "text"}]}, "content.0.text"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "content.0.text"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "content.0.image_url"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": "http://x"}]}, "content.0.image_url"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "content.0.image_url.url"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": 5}}]}, "content.0.image_url.url"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x"}}]}, "content.0.input_audio.format"),
        ({"role": "user", "content": [{"type": "file"}]}, "content.0.file"),
        ({"role": "user", "content": [{"type": "file", "file": {"file_id": 5}}]}, "content.0.file.file_id"),
        ({"role": "system", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "content.0.type"),
        ({"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "content.0.type"),
        ({"role": "assistant", "content": [{"type": "refusal"}]}, "content.0.refusal"),
        ({"role": "assistant", "refusal": 5}, "refusal"),
        ({"role": "assistant", "audio": {}}, "audio.id"),
        ({"role": "assistant", "tool_calls": 5}, "tool_calls"),
        ({"role": "assistant", "tool_calls": ["x"]}, "tool_calls.0"),
        ({"role": "assistant", "tool_calls": [{"id": "a"}]}, "tool_calls.0.type"),
        ({"role": "assistant", "tool_calls": [{"id": "a", "type": "function"}]}, "tool_calls.0.function"),
        ({"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": 5}]}, "tool_calls.0.function"),
        ({"role": "assistant", "tool_calls": [CALL, CALL | {"function": {"name": "f"}}]}, "tool_calls.1.function.arguments"),
        ({"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "f"}}]}, "tool_calls.0.custom.input"),
        ({"role": "assistant", "function_call": {"name": "f"}}, "function_call.arguments"),
        ({"role": "tool", "content": "x"}, "tool_call_id"),
        ({"role": "function", "content": "x"}, "name"),
    ],
)
def test_what_is_no_message_of_openais_is_refused_by_name(message: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as wrong:
        chat_body({"model": "m", "messages": [message]})
    assert wrong.value.param == f"messages.0.{param}"


def test_messages_reach_a_model_as_they_were_sent() -> None:
    call = CALL | {"index": 0}
    custom = {"id": "b", "type": "custom", "custom": {"name": "f", "input": ""}}
    parts = [
        {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA==", "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "eA==", "format": "wav"}},
        {"type": "file", "file": {"file_id": "file_1"}},
    ]
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "x"}]},
        {"role": "user", "content": parts, "name": "Ann"},
        {"role": "assistant", "tool_calls": [call, custom], "reasoning_content": "x"},
        {"role": "tool", "tool_call_id": "a", "content": "x"},
        {"role": "tool", "tool_call_id": "b", "content": parts[:1]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "audio": {"id": "a"}},
        {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "x"},
    ]  # fmt: skip
    assert chat_body({"model": "m", "messages": messages}).provider_fields(output_tokens=9, local=False)["messages"] == messages
    said = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call], "function_call": None, "audio": None}
    assert chat_body({"model": "m", "messages": [said]}).provider_fields(output_tokens=9, local=False)["messages"] == [
        {"role": "assistant", "tool_calls": [call]}
    ]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"model": None}, "model"),
    ],
)
def test_wrong_fields_are_named(change: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as wrong:
        chat_body({"model": "m", "messages": [{"role": "user", "content": "hi"}]} | change)
    assert wrong.value.param == param
