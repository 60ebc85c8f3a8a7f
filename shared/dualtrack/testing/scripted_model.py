"""The scripted model behind the gateway's port: engine tests script the model, they don't patch it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

from dualtrack.domain.errors import (
    ContextTooLong,
    InvalidRequest,
    MalformedAction,
    ModelError,
    ModelRateLimited,
    ModelRefusedRequest,
    ModelTimeout,
    ModelUnavailable,
    UnknownModel,
)
from dualtrack.domain.ids import new_id
from dualtrack.domain.tool import ProposedCall
from dualtrack.domain.usage import Usage
from dualtrack.models.port import Decision, DecisionRequest, ModelInfo, Summary, SummaryRequest
from dualtrack.testing.model_script import Failure, Failures, Script, ScriptedStep, echo, script_in, summary_of, token_estimate

MODEL_NAME: Final = "scripted"

_ERRORS: Final[Mapping[Failure, type[ModelError]]] = {
    "rate_limited": ModelRateLimited,
    "server_error": ModelUnavailable,
    "hang": ModelTimeout,
    "cut": ModelUnavailable,
    "context_too_long": ContextTooLong,
    "refused": ModelRefusedRequest,
}


class ScriptedModel:
    """A `ModelGateway` that answers from scripts. Thread-safe.

    A fenced script in the task wins over `script`, which may be one script for all jobs (a `Script`, or its JSON form) or a
    function from the request to a script. Without any, the first decision is `finish` with an echo of the task.

    Attributes:
        requests: every decision asked for, in order.
        summaries: every summary asked for, in order.
        on_decide, on_summarise: called with each request before it is answered; tests use them to crash, block or look.
    """

    def __init__(
        self,
        script: Script | Sequence[Mapping[str, Any]] | Callable[[DecisionRequest], Script] | None = None,
        *,
        tracks: Sequence[str] = ("fast", "deep"),
        on_decide: Callable[[DecisionRequest], None] | None = None,
        on_summarise: Callable[[SummaryRequest], None] | None = None,
        context_tokens: int = 128_000,
    ) -> None:
        self._script = script if script is None or isinstance(script, Script) or callable(script) else Script.model_validate(list(script))
        self._tracks = tuple(tracks)
        self._failures = Failures()
        self.requests: list[DecisionRequest] = []
        self.summaries: list[SummaryRequest] = []
        self.on_decide = on_decide
        self.on_summarise = on_summarise
        self._context_tokens = context_tokens

    def models(self) -> Sequence[ModelInfo]:
        names = [(name, True) for name in self._tracks] + [(MODEL_NAME, False)]
        return [ModelInfo(name, track=track, targets=(MODEL_NAME,), context_tokens=self._context_tokens) for name, track in names]

    def usage(self, model: str, raw: Mapping[str, Any] | None) -> Usage:
        self._known(model)
        counts = raw or {}
        return Usage(int(counts.get("prompt_tokens", 0)), int(counts.get("completion_tokens", 0)))

    def decide(self, request: DecisionRequest) -> Decision:
        self._known(request.model)
        self.requests.append(request)
        if self.on_decide is not None:
            self.on_decide(request)
        started = time.monotonic()
        step = self._step(request, request.task)
        usage = _usage(step, _context(request))
        if not step.calls:
            raise MalformedAction("The answer holds no tool call.", raw=step.text or "", model=MODEL_NAME, usage=usage)
        return Decision(
            thought=step.thought,
            reflection=(step.reflection or "The last step failed; I go on differently.") if request.reflect else "",
            calls=tuple(ProposedCall(tool=call.tool, arguments=call.arguments) for call in step.calls),
            model=MODEL_NAME,
            usage=usage,
            latency_s=time.monotonic() - started,
        )

    def summarise(self, request: SummaryRequest) -> Summary:
        self._known(request.context.model)
        self.summaries.append(request)
        if self.on_summarise is not None:
            self.on_summarise(request)
        started = time.monotonic()
        step = self._step(request.context, f"summary\n{request.context.task}")
        text = summary_of(step, _number(request.context))
        usage = Usage(token_estimate(_context(request.context)), token_estimate(text))
        if not text.strip():
            raise MalformedAction("The model wrote no summary.", model=MODEL_NAME, usage=usage)
        return Summary(text=text, model=MODEL_NAME, usage=usage, latency_s=time.monotonic() - started)

    def _step(self, request: DecisionRequest, conversation: str) -> ScriptedStep:
        """The script's step for a request, after its delay. Raises its error."""
        number = _number(request)
        step = self._script_of(request).step(number)
        failure = self._failures.due(step, conversation, number)
        if step.delay_s:
            time.sleep(step.delay_s)
        if failure is not None:
            raise _ERRORS[failure](f"The script says: {failure}.")
        return step

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        text, usage = await self._answer(body)
        return {
            "id": new_id("chatcmpl"),
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body["model"],
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop", "logprobs": None}],
            "usage": openai_usage(usage),
        }

    async def chat_stream(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        text, usage = await self._answer(body)
        head = {"id": new_id("chatcmpl"), "object": "chat.completion.chunk", "created": int(time.time()), "model": body["model"]}
        words = text.split(" ")
        pieces = [word if n == 0 else f" {word}" for n, word in enumerate(words)]
        yield head | {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
        for piece in pieces:
            yield head | {"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]}
        yield head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        if (body.get("stream_options") or {}).get("include_usage"):
            yield head | {"choices": [], "usage": openai_usage(usage)}

    async def _answer(self, body: Mapping[str, Any]) -> tuple[str, Usage]:
        self._known(str(body.get("model")))
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise InvalidRequest("`messages` must be a list with at least one message.", param="messages")
        users = [content_text(message) for message in messages if message.get("role") == "user"]
        script = script_in(users)
        if script is None:
            text = echo(users[-1] if users else "")
            return text, Usage(input_tokens=token_estimate(json.dumps(messages)), output_tokens=token_estimate(text))
        number = sum(message.get("role") == "assistant" for message in messages)
        step = script.step(number)
        failure = self._failures.due(step, users[0], number)
        await asyncio.sleep(step.delay_s)
        if failure is not None:
            raise _ERRORS[failure](f"The script says: {failure}.")
        return step.text if step.text is not None else step.thought, _usage(step, json.dumps(messages))

    def _known(self, name: str) -> None:
        if name != MODEL_NAME and name not in self._tracks:
            raise UnknownModel(f"There is no model {name!r}: GET /v1/models lists them.", param="model")

    def _script_of(self, request: DecisionRequest) -> Script:
        inside = script_in([request.task])
        if inside is not None:
            return inside
        if callable(self._script):
            return self._script(request)
        if self._script is not None:
            return self._script
        return Script.model_validate([{"tool": "finish", "arguments": {"answer": echo(request.task)}}])


def content_text(message: Mapping[str, Any]) -> str:
    """The text of a chat message whose content is a string or OpenAI's list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return ""


def openai_usage(usage: Usage) -> dict[str, Any]:
    """Usage in OpenAI's shape."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _number(request: DecisionRequest) -> int:
    """Steps so far, those that a summary stands for included."""
    return request.summarised + len(request.steps)


def _context(request: DecisionRequest) -> str:
    past = "".join(step.thought + "".join(call.observation for call in step.calls) + "".join(step.messages) for step in request.steps)
    return request.system + request.task + "".join(request.messages) + request.summary + past


def _usage(step: ScriptedStep, context: str) -> Usage:
    said = step.text if step.text is not None else step.thought + "".join(call.model_dump_json() for call in step.calls)
    return Usage(
        input_tokens=token_estimate(context) if step.input_tokens is None else step.input_tokens,
        output_tokens=token_estimate(said) if step.output_tokens is None else step.output_tokens,
    )
