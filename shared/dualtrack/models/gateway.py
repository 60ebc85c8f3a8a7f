"""The model gateway over LiteLLM: tracks with fallbacks, retries, timeouts, one error family, usage and price."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from dualtrack.domain.errors import MalformedAction, ModelError, ModelTimeout
from dualtrack.domain.usage import Usage
from dualtrack.models.action_text import ActionUnreadable, ProviderAnswer
from dualtrack.models.actions import read_action, request_body, summary_body
from dualtrack.models.catalog import Catalog, Target
from dualtrack.models.chat_body import ChatBody, chat_body
from dualtrack.models.errors import classify
from dualtrack.models.litellm_client import litellm
from dualtrack.models.local_server import Access
from dualtrack.models.port import Decision, DecisionRequest, ModelInfo, Summary, SummaryRequest
from dualtrack.models.prices import usage_of
from dualtrack.models.retries import Pause, Tries, most_telling

_RAW_CHARS: Final = 4000
_RETRY_TEMPERATURE: Final = 0.7
"""After a failed step a model at temperature 0 tends to repeat itself word for word."""
_NO_KEY: Final = "none"
"""Sent to self-hosted servers: without a key LiteLLM would send OpenAI's own from the environment."""


class LocalServer(Protocol):
    """Where the local model is served: `models.local_server`."""

    def ensure(self) -> Access:
        """Its address and key, starting it if need be (blocking). Raises `ModelError`."""
        ...


@dataclass(frozen=True, slots=True)
class _Answered:
    """The answer of a model that was asked for a decision or a summary."""

    message: Mapping[str, Any]
    cut_off: bool
    target: Target
    usage: Usage
    latency_s: float

    @property
    def model(self) -> str:
        return self.target.name


class LiteLLMGateway:
    """`ModelGateway` over LiteLLM. Thread-safe; `chat` and `chat_stream` run on any event loop.

    An answer's `model` is the configured model that gave it, not the track that was asked: the caller sees a fallback, and
    `usage` can price it. A model's turn is over when its retries are used up or the failure is not a passing one; then the next model of
    the track is asked. Streams fall back until their first chunk.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        environment: Mapping[str, str],
        local: LocalServer | None = None,
        pause: Pause | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalog = catalog
        self._environment = environment
        self._local = local
        self._pause = pause or Pause(random.Random())  # noqa: S311 - jitter
        self._clock = clock

    def models(self) -> Sequence[ModelInfo]:
        """All tracks, then all models."""
        return self._catalog.models()

    def usage(self, model: str, raw: Mapping[str, Any] | None) -> Usage:
        """Tokens and price of an answer's `usage` object; `model` is the answer's own."""
        return usage_of(raw, self._catalog.targets(model)[0].settings)

    def decide(self, request: DecisionRequest) -> Decision:
        """One decision (blocking, at most about `request.timeout_s`).

        Raises:
            UnknownModel: no such track or model.
            MalformedAction: an answer came, but holds no action.
            ModelError: no model of the track answered; retryable if any of the failures was.
        """
        answered = self._complete(request, lambda target: _decision_fields(target, request))
        return _decision(answered, request)

    def summarise(self, request: SummaryRequest) -> Summary:
        """A summary of a job so far (blocking, at most about `request.context.timeout_s`).

        Raises:
            UnknownModel: no such track or model.
            MalformedAction: an answer came, but without text.
            ModelError: no model of the track answered; retryable if any of the failures was.
        """
        answered = self._complete(request.context, lambda target: _summary_fields(target, request))
        text = answered.message.get("content") or ""
        if not text.strip():
            raise MalformedAction(
                "The model wrote no summary.", raw=str(answered.message)[:_RAW_CHARS], model=answered.model, usage=answered.usage
            )
        return Summary(text=text.strip(), model=answered.model, usage=answered.usage, latency_s=answered.latency_s)

    def _complete(self, request: DecisionRequest, fields_of: Callable[[Target], dict[str, Any]]) -> _Answered:
        started = self._clock()
        deadline = started + request.timeout_s
        failures: list[ModelError] = []
        for target in self._catalog.targets(request.model):
            for tries in Tries(target.settings.retries):
                left = deadline - self._clock()
                if left <= 0:
                    failures.append(ModelTimeout(f"No answer within {request.timeout_s:g} s."))
                    raise most_telling(failures)
                fields = fields_of(target) | {"timeout": min(target.settings.timeout_s, left)}
                try:
                    access = self._access(target, self._local_access(target))
                    answer = litellm().completion(**access, **fields).model_dump()
                except Exception as error:  # noqa: BLE001 - whatever LiteLLM raises is classified in one place
                    failures.append(classify(error, target.name))
                    if not tries.another(failures[-1]):
                        break
                    self._pause.wait(tries.number, error, limit_s=deadline - self._clock())
                else:
                    return _answered(answer, target, self._clock() - started)
        raise most_telling(failures)

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """OpenAI's `chat.completion`. Fields of the body that OpenAI does not know are ignored.

        Raises:
            InvalidRequest, UnknownModel, ModelError.
        """
        checked = chat_body(body)
        answer, target = await self._open(checked, stream=False)
        return {**answer.model_dump(exclude_none=True), "model": target.name}

    async def chat_stream(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """OpenAI's `chat.completion.chunk`s; closing the iterator closes the connection to the provider.

        Raises:
            InvalidRequest, UnknownModel, ModelError: before the first chunk, or (ModelError) in the middle.
        """
        checked = chat_body(body)
        (chunks, first), target = await self._open(checked, stream=True)
        try:
            if first is not None:
                yield _chunk(first, target)
                async for chunk in chunks:
                    yield _chunk(chunk, target)
        except Exception as error:
            raise classify(error, target.name) from error
        finally:
            await chunks.aclose()

    async def _open(self, body: ChatBody, *, stream: bool) -> tuple[Any, Target]:
        failures: list[ModelError] = []
        for target in self._catalog.targets(body.model):
            for tries in Tries(target.settings.retries):
                fields = _chat_fields(target, body, stream=stream)
                try:
                    local = await asyncio.to_thread(self._local_access, target) if target.local else None
                    answer = await litellm().acompletion(**self._access(target, local), **fields)
                    return (await _with_first(answer) if stream else answer), target
                except Exception as error:  # noqa: BLE001 - as in `decide`
                    failures.append(classify(error, target.name))
                    if not tries.another(failures[-1]):
                        break
                    await self._pause.wait_async(tries.number, error)
        raise most_telling(failures)

    def _local_access(self, target: Target) -> Access | None:
        return self._local.ensure() if target.local and self._local is not None else None

    def _access(self, target: Target, local: Access | None) -> dict[str, Any]:
        settings = target.settings
        key = self._environment.get(settings.api_key_env) if settings.api_key_env else None
        fields: dict[str, Any] = {"model": settings.litellm_model, "max_retries": 0}
        if local is not None:
            return fields | {"api_base": local.base_url, "api_key": local.api_key}
        if settings.api_base:
            return fields | {"api_base": settings.api_base, "api_key": key or _NO_KEY}
        return fields | ({"api_key": key} if key else {})


def _answered(answer: Mapping[str, Any], target: Target, latency_s: float) -> _Answered:
    choice = (answer.get("choices") or [{}])[0]
    usage = usage_of(answer.get("usage"), target.settings)
    return _Answered(choice.get("message") or {}, choice.get("finish_reason") == "length", target, usage, latency_s)


def _decision(answered: _Answered, request: DecisionRequest) -> Decision:
    message, usage = answered.message, answered.usage
    said = ProviderAnswer(
        content=message.get("content") or "",
        tool_calls=tuple(message.get("tool_calls") or ()),
        reasoning=message.get("reasoning_content") or "",
        cut_off=answered.cut_off,
    )
    try:
        action = read_action(said, request, answered.target.settings.action_format)
    except ActionUnreadable as error:
        raw = said.content or "\n".join(str(call.get("function")) for call in said.tool_calls)
        raise MalformedAction(str(error), raw=raw[:_RAW_CHARS], model=answered.model, usage=usage) from error
    return Decision(
        thought=action.thought,
        reflection=action.reflection,
        calls=action.calls,
        model=answered.model,
        usage=usage,
        latency_s=answered.latency_s,
    )


def _decision_fields(target: Target, request: DecisionRequest) -> dict[str, Any]:
    settings = target.settings
    fields = request_body(request, settings.action_format) | {"max_tokens": settings.max_output_tokens}
    if settings.temperature is not None:
        failed_before = request.reflect or (bool(request.steps) and not request.steps[-1].calls)
        fields["temperature"] = max(settings.temperature, _RETRY_TEMPERATURE) if failed_before else settings.temperature
    return fields


def _summary_fields(target: Target, request: SummaryRequest) -> dict[str, Any]:
    settings = target.settings
    fields = summary_body(request, settings.action_format) | {"max_tokens": settings.max_output_tokens}
    return fields if settings.temperature is None else fields | {"temperature": settings.temperature}


def _chat_fields(target: Target, body: ChatBody, *, stream: bool) -> dict[str, Any]:
    fields = body.provider_fields(output_tokens=target.settings.max_output_tokens, local=target.local)
    fields["timeout"] = target.settings.timeout_s
    if stream:
        fields["stream"] = True
        if body.wants_usage:
            fields["stream_options"] = {"include_usage": True}
    return fields


async def _with_first(chunks: Any) -> tuple[Any, Any]:  # noqa: ANN401 - LiteLLM's stream
    """A stream and its first chunk (None when it is empty), so that a failure before it can still fall back."""
    try:
        return chunks, await anext(chunks, None)
    except BaseException:
        await chunks.aclose()
        raise


def _chunk(chunk: Any, target: Target) -> dict[str, Any]:  # noqa: ANN401 - LiteLLM's chunk
    value = chunk.model_dump(exclude_none=True)
    choices = [{"finish_reason": None, **choice} for choice in value.get("choices", ())]
    return {**value, "choices": choices, "model": target.name}
