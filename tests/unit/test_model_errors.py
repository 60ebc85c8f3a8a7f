from __future__ import annotations

import random

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
