"""LiteLLM's exceptions as ours, in one place."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator
from json import JSONDecodeError
from traceback import walk_tb
from typing import Final

from dualtrack.domain.errors import ContextTooLong, ModelError, ModelRateLimited, ModelRefusedRequest, ModelTimeout, ModelUnavailable

_LOG: Final = logging.getLogger(__name__)
_MESSAGE_CHARS: Final = 300
_TOO_LONG: Final = re.compile(r"context[ _](length|size|window)|exceed_context|too many tokens|maximum context", re.IGNORECASE)
_NOISE: Final = re.compile(r"\b(litellm\.)?\w+(Error|Exception)\b( -|:) ?")
_SECRET: Final = re.compile(r"\b(sk|key|pk|gsk|xai|AIza)[-_]?[A-Za-z0-9_*-]{8,}|Bearer \S+")
_CLIENT_STATUS: Final = range(400, 500)
_TIMEOUTS: Final = frozenset({"Timeout", "APITimeoutError", "TimeoutError"})
_OWN: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)
"""Raised by LiteLLM's own code, mostly over parameters that it can't translate; it wraps them in errors of a failing server."""
_WIRE: Final = frozenset({"aiohttp", "anyio", "asyncio", "httpcore", "httpx", "openai", "ssl"})
"""Packages whose exceptions mean that there was a server, or none; what they can't decode came from one."""
_READING: Final = frozenset({"chunk_creator", "chunk_parser", "convert_to_model_response_object", "transform_response"})
"""Functions of LiteLLM that read what a provider answered."""
_CANT_ASK: Final = "it can't be put in its provider's terms: check the messages, tools and parameters"
_CANT_READ: Final = "what it answered can't be read"
_PASSING_STATUS: Final[dict[int, type[ModelError]]] = {
    408: ModelTimeout,
    409: ModelUnavailable,
    425: ModelUnavailable,
    429: ModelRateLimited,
}


def classify(error: BaseException, model: str) -> ModelError:
    """The error of ours that a failed model call stands for; the message names the model and quotes the provider, without keys."""
    if isinstance(error, ModelError):
        return error
    own = _own_fault(error)
    if own is not None:
        _LOG.warning("%s: %s", model, own, exc_info=error)
    said = own or provider_message(error)
    kind = _kind(error, said)
    sentence = {
        ContextTooLong: f"The conversation is too long for {model}: {said}",
        ModelTimeout: f"{model} did not answer in time.",
        ModelRateLimited: f"{model} asks to slow down: {said}",
        ModelRefusedRequest: f"{model} refused the request: {said}",
        ModelUnavailable: f"{model} is not available: {said}",
    }
    found = kind(sentence[kind])
    if found.retryable:
        found.retry_after_s = retry_after_s(error)
    return found


def _kind(error: BaseException, said: str) -> type[ModelError]:
    names = {cls.__name__ for cls in type(error).__mro__}
    status = getattr(error, "status_code", None)
    if "ContextWindowExceededError" in names or (status in _CLIENT_STATUS and _TOO_LONG.search(said)):
        return ContextTooLong
    if names & _TIMEOUTS:
        return ModelTimeout
    if status in _PASSING_STATUS:
        return _PASSING_STATUS[status]
    return ModelRefusedRequest if status in _CLIENT_STATUS or said == _CANT_ASK else ModelUnavailable


def _own_fault(error: BaseException) -> str | None:
    """What to say of an exception of LiteLLM's own code, also where it is wrapped; None: it is none, and quotes a provider."""
    causes = list(_causes(error))
    own = [cause for cause in causes if type(cause) is Exception or isinstance(cause, _OWN)]
    if not own or not any(cause is error or str(cause) in str(error) for cause in own):
        return None
    if any(_while_reading(cause) for cause in causes):
        return _CANT_READ
    wire = any(isinstance(cause, OSError) or _package(type(cause).__module__) in _WIRE for cause in causes)
    return None if wire else _CANT_ASK


def _while_reading(cause: BaseException) -> bool:
    """Whether it was raised over a provider's answer, not over a request."""
    frames = [frame for frame, _ in walk_tb(cause.__traceback__)]
    if isinstance(cause, JSONDecodeError | UnicodeDecodeError) and any(_package(frame.f_globals["__name__"]) in _WIRE for frame in frames):
        return True
    return any(frame.f_code.co_name in _READING for frame in frames)


def _package(module: str) -> str:
    return module.partition(".")[0]


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception and those that it came of, the latest first."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def retry_after_s(error: BaseException) -> float | None:
    """Seconds that the provider asks to wait, where it says so."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def provider_message(error: BaseException) -> str:
    """What the provider said, on one line, shortened, with anything that looks like a key cut out."""
    text = _NOISE.sub("", str(error).split("\n", 1)[0])
    text = _SECRET.sub("[hidden]", " ".join(text.split()))
    return (text[:_MESSAGE_CHARS] + "…") if len(text) > _MESSAGE_CHARS else text or type(error).__name__
