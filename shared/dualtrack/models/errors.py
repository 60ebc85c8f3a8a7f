"""LiteLLM's exceptions as ours, in one place."""

from __future__ import annotations

import math
import re
from typing import Final

from dualtrack.domain.errors import ContextTooLong, ModelError, ModelRateLimited, ModelRefusedRequest, ModelTimeout, ModelUnavailable

_MESSAGE_CHARS: Final = 300
_TOO_LONG: Final = re.compile(r"context[ _](length|size|window)|exceed_context|too many tokens|maximum context", re.IGNORECASE)
_NOISE: Final = re.compile(r"\b(litellm\.)?\w+(Error|Exception)\b( -|:) ?")
_SECRET: Final = re.compile(r"\b(sk|key|pk|gsk|xai|AIza)[-_]?[A-Za-z0-9_*-]{8,}|Bearer \S+")
_CLIENT_STATUS: Final = range(400, 500)
_TIMEOUTS: Final = frozenset({"Timeout", "APITimeoutError", "TimeoutError"})
_WRONG_REQUEST: Final = frozenset({"TypeError", "ValueError", "KeyError", "AttributeError"})
"""Raised by LiteLLM's own code over parameters that it can't translate."""
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
    said = provider_message(error)
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
    return ModelRefusedRequest if status in _CLIENT_STATUS or names & _WRONG_REQUEST else ModelUnavailable


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
