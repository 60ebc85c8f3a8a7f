"""The one place that maps errors to HTTP: statuses, OpenAI's error shape, and handlers for what the framework raises itself."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match

from dualtrack.domain import faulty
from dualtrack.domain.errors import DualtrackError, InfrastructureError, InvalidJSON, InvalidRequest, NotFound, UnknownModel
from router import faults, forms
from router.text import require_clean

INTERNAL: Final = "internal_error"
RETRY_AFTER_S: Final = 2
"""What a client is told to wait when trying again may help, and nobody knows when."""
RETRY_AFTER_MOST_S: Final = 24 * 3600
"""The longest it is told, whatever a provider says."""
_SHOWN: Final = 3
"""Validation errors named in one message."""
_MAX_PARAM_CHARS: Final = 200
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class MethodNotAllowed(InvalidRequest):
    """The address exists, but not for this method."""

    code = "method_not_allowed"


class UnsupportedMediaType(InvalidRequest):
    """The body is not of the kind that the address takes."""

    code = "unsupported_media_type"


class RequestTimeout(InvalidRequest):
    """The body was begun, and then nothing more of it came."""

    code = "request_timeout"


class TooManyStreams(InfrastructureError):
    """This process keeps as many event streams open as it may."""

    code = "too_many_streams"


class Refused(HTTPException):
    """One of our errors in the one class that the framework lets through from wherever it reads a body."""

    def __init__(self, error: DualtrackError, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status_of(error), error.message, headers)
        self.error = error


class ClientGone(Exception):
    """The client closed the connection: there is nobody to answer."""


STATUS: Final[Mapping[str, int]] = {
    "invalid_request": 400,
    "invalid_json": 400,
    "tool_not_found": 400,
    "invalid_path": 400,
    "address_refused": 400,
    "invalid_api_key": 401,
    "model_not_found": 404,
    "not_found": 404,
    "object_not_found": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "conflict": 409,
    "job_ended": 409,
    "job_not_ended": 409,
    "job_succeeded": 409,
    "job_stopping": 409,
    "job_waits": 409,
    "parent_held": 409,
    "step_not_ended": 409,
    "step_cut_short": 409,
    "call_not_ended": 409,
    "limit_reached": 409,
    "other_approval_kind": 409,
    "other_arguments": 409,
    "approval_decided": 409,
    "approval_expired": 409,
    "approval_withdrawn": 409,
    "webhook_disabled": 409,
    "delivery_under_way": 409,
    "idempotency_key_reused": 409,
    "stale_attempt": 409,
    "cancelled": 409,
    "request_too_large": 413,
    "unsupported_media_type": 415,
    "model_request_refused": 400,
    "context_length_exceeded": 400,
    "budget_exceeded": 429,
    "model_rate_limited": 429,
    "model_error": 502,
    "malformed_action": 502,
    "outgoing_request_failed": 502,
    "host_unreachable": 502,
    "answer_broken": 502,
    "model_unavailable": 503,
    "model_timeout": 504,
    INTERNAL: 500,
    "internal_fault": 500,
    "record_unreadable": 500,
    "secret_unreadable": 500,
    "infrastructure_error": 503,
    "database_unavailable": 503,
    "broker_unavailable": 503,
    "storage_unavailable": 503,
    "sandbox_failed": 503,
    "sandbox_unavailable": 503,
    "too_many_streams": 503,
}
"""HTTP status of every error code."""
_AGENT_MODEL: Final = "agent.model"
"""The field of a job that names a model."""

_MEANING: Final = {
    400: "The request can't be accepted as it is; `param` names the field.",
    401: "The API key is missing or wrong.",
    404: "It does not exist, or belongs to somebody else.",
    405: "The address exists, but not for this method.",
    408: "The body was begun, and then nothing more of it came.",
    409: "The state of the resource does not allow it.",
    413: "The body is larger than the platform takes.",
    415: "The body is not of the kind that the address takes.",
    429: "The model's provider wants fewer requests, or what the key may use today is used up: try again after `Retry-After` seconds.",
    500: "An error of ours; quote the request id.",
    502: "The model gave no answer that can be used.",
    503: "Something the platform needs is down for now: try again after `Retry-After` seconds.",
    504: "The model did not answer in time.",
}


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str = Field(description="For a person: what is wrong and what to do.")
    type: Literal["invalid_request_error", "authentication_error", "rate_limit_error", "server_error"]
    param: str | None = Field(None, description="The field at fault, such as `limits.steps`.")
    code: str = Field(description="Stable, for programs.")


class ErrorBody(BaseModel):
    """OpenAI's error shape."""

    error: ErrorDetail


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of an address for its OpenAPI description; every one may also fail with 401, 500 and 503."""
    listed: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorBody, "description": _MEANING[status]} for status in sorted({*statuses, 400, 401, 500, 503})
    }
    # `default` also keeps FastAPI from describing a 422 that is never sent.
    return {**listed, "default": {"model": ErrorBody, "description": "Any other error."}}


def status_of(error: DualtrackError) -> int:
    """The HTTP status of an error: that of its code, else of the nearest base class that has one."""
    if isinstance(error, UnknownModel) and (error.param or "").endswith(_AGENT_MODEL):
        return STATUS["invalid_request"]  # a job is described wrong, as where a tool is unknown; it is not the model that was asked for
    for cls in type(error).__mro__:
        status = STATUS.get(str(vars(cls).get("code", "")))
        if status is not None:
            return status
    return STATUS[INTERNAL]


def _type_of(status: int) -> str:
    if status == STATUS["invalid_api_key"]:
        return "authentication_error"
    if status == STATUS["model_rate_limited"]:
        return "rate_limit_error"
    return "server_error" if status >= STATUS[INTERNAL] else "invalid_request_error"


def shape(error: DualtrackError) -> dict[str, Any]:
    """An error as the API shows it."""
    param = error.param[:_MAX_PARAM_CHARS] if error.param else None
    return {"error": {"message": error.message, "type": _type_of(status_of(error)), "param": param, "code": error.code}}


def encode(error: DualtrackError) -> bytes:
    """The JSON of an error; ASCII, so that even a broken string that it quotes can be sent."""
    return json.dumps(shape(error)).encode("ascii")


def response(error: DualtrackError, headers: Mapping[str, str] | None = None) -> Response:
    """An error as an HTTP response."""
    status = status_of(error)
    extra = dict(headers or {})
    if error.retryable or error.retry_after_s is not None:
        extra["Retry-After"] = str(_retry_after(error))
    if status == STATUS["invalid_api_key"]:
        extra["WWW-Authenticate"] = "Bearer"
    return Response(encode(error), status_code=status, media_type="application/json", headers=extra)


def _retry_after(error: DualtrackError) -> int:
    """Whole seconds, at least one: a client that comes back at once comes too early."""
    if error.retry_after_s is None:
        return RETRY_AFTER_S
    return max(1, min(math.ceil(error.retry_after_s), RETRY_AFTER_MOST_S))


def internal(request_id: str) -> DualtrackError:
    """What a client hears of an error nobody foresaw: nothing but how to find it in the logs."""
    return DualtrackError(f"An internal error; the server's log has it under the request id {request_id}.")


def _place(error: Mapping[str, Any], body: object) -> str:
    """`("body", "limits", "steps")` as `limits.steps`; the name of a header or query parameter as it is."""
    where, *rest = error["loc"]
    return faulty.place(error, rest, body) if where == "body" else ".".join(map(str, rest))


def from_validation(errors: Sequence[Mapping[str, Any]], body: object, *, is_json: bool = True) -> DualtrackError:
    """Pydantic's errors as one of ours; what the client sent is not repeated."""
    first = errors[0]
    if is_json and isinstance(body, dict | list):
        try:
            require_clean(body)
        except InvalidRequest as unclean:  # says more than what Pydantic makes of it
            return unclean
    if first["type"] == "json_invalid":
        detail = first.get("ctx", {}).get("error", "")
        return InvalidJSON(f"The body is not valid JSON: {detail} at character {first['loc'][-1]}.")
    if tuple(first["loc"]) == ("body",):
        if first["type"] == "missing":
            return InvalidRequest("A body is required.")
        if not is_json:
            return UnsupportedMediaType("Send the body as JSON, with the header 'Content-Type: application/json'.")
        return InvalidRequest("The body must be a JSON object.")
    telling = faulty.telling([(_place(error, body), error) for error in errors])
    sentences = []
    for at, error in telling[:_SHOWN]:
        text = faults.words(error)
        sentences.append(f"{at}: {text[:1].lower()}{text[1:].rstrip('.')}")
    more = f" (and {len(telling) - _SHOWN} more)" if len(telling) > _SHOWN else ""
    return InvalidRequest("; ".join(sentences) + f"{more}.", param=telling[0][0] or None)


def _kind(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _is_json(request: Request) -> bool:
    kind = _kind(request)
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _from_http(request: Request, error: HTTPException) -> DualtrackError:
    """The framework's own refusals."""
    if isinstance(error, Refused):
        return error.error
    match error.status_code:
        case 404:
            return NotFound("There is no such address; /docs lists all.")
        case 405:
            return MethodNotAllowed(f"{request.method} is not allowed here; the header Allow says what is.")
        case 400 if _is_json(request):
            return InvalidJSON(f"The body {_unreadable(error.__cause__)}.")
        case 400 if _kind(request) == forms.FORM:
            return forms.fault(str(error.detail))
        case _:
            return InvalidRequest(str(error.detail))


def _unreadable(cause: BaseException | None) -> str:
    """Why JSON could not be read, other than for its syntax."""
    match cause:
        case UnicodeDecodeError():
            return "is not UTF-8"
        case RecursionError():
            return "is nested too deeply"
        case ValueError():
            return f"holds a whole number of more than {sys.get_int_max_str_digits()} digits"
        case _:
            return "is not valid JSON in UTF-8"


def _allowed(request: Request) -> str:
    """All methods of an address: each of its routes knows only its own."""
    methods = (
        method
        for method in _METHODS
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in request.app.routes)
    )
    return ", ".join(methods)


def install(app: FastAPI) -> None:
    """Answer every error that a route, a dependency or the framework raises."""

    async def known(_: Request, error: Exception) -> Response:
        assert isinstance(error, DualtrackError)  # noqa: S101 - registered for this class
        return response(error)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this class
        return response(from_validation(error.errors(), error.body, is_json=_is_json(request)))

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - registered for this class
        headers = error.headers
        if headers and "Allow" in headers:
            headers = {**headers, "Allow": _allowed(request)}
        return response(_from_http(request, error), headers)

    app.add_exception_handler(DualtrackError, known)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, refused)
