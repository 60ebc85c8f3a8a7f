"""What is around every request: its id, its server span, its metrics, and an answer whatever happens inside.

Plain ASGI and one wrapper for all of it: every layer costs time on the fast track.
"""

from __future__ import annotations

import logging
import re
import time
from typing import Final

from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dualtrack.domain.ids import new_id
from dualtrack.telemetry import genai, tracing
from router import errors
from router.errors import ClientGone
from router.metrics import UNMATCHED, Metrics

_LOG: Final = logging.getLogger(__name__)
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_UNTRACED: Final = frozenset({"/healthz", "/readyz", "/metrics"})
"""Asked every few seconds by machines; their spans would only be noise."""
CLIENT_CLOSED: Final = 499
"""nginx's status for a client that went away before its answer; for metrics and spans only."""
_SERVER_ERROR: Final = 500


class Envelope:
    """Outermost middleware."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; `scope["state"]["request_id"]` and the header `x-request-id` carry its id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, parent = _headers(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        exchange = _Exchange(self._app, request_id)
        started = time.perf_counter()
        try:
            if scope["path"] in _UNTRACED:
                await exchange.serve(scope, receive, send)
            else:
                attributes = {"http.request.method": scope["method"], "url.path": scope["path"], "url.scheme": scope["scheme"]}
                with tracing.span(scope["method"], parent=parent, kind=SpanKind.SERVER, attributes=attributes) as span:
                    try:
                        await exchange.serve(scope, receive, send)
                    finally:
                        _finish(span, scope["method"], _route(scope), exchange.status)
        finally:
            self._metrics.request(scope["method"], _route(scope), exchange.status, time.perf_counter() - started)


class _Exchange:
    """One request and how it was answered."""

    def __init__(self, app: ASGIApp, request_id: str) -> None:
        self._app = app
        self._id = request_id
        self.status = 0
        """As sent; 0 before that."""

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", self._id.encode("ascii"))]
            await send(message)

        try:
            await self._app(scope, receive, with_id)
        except ClientGone:
            self.status = CLIENT_CLOSED
        except Exception:
            if self.status:  # half an answer is out: only cutting the connection tells the client
                raise
            _LOG.exception("request failed", extra={"request_id": self._id, "method": scope["method"], "path": scope["path"]})
            await errors.response(errors.internal(self._id))(scope, receive, with_id)


def _headers(scope: Scope) -> tuple[str, str | None]:
    """The request's id (the client's own where it is a usable one) and its W3C parent."""
    request_id, parent = None, None
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            request_id = value.decode("ascii")
        elif name == b"traceparent":
            parent = value.decode("latin-1")
    return request_id or new_id("req"), parent


def _route(scope: Scope) -> str:
    """The address as a template, so that labels stay few."""
    return getattr(scope.get("route"), "path", None) or UNMATCHED


def _finish(span: Span, method: str, route: str, status: int) -> None:
    if route != UNMATCHED:
        span.update_name(f"{method} {route}")
        span.set_attribute("http.route", route)
    if status:
        span.set_attribute("http.response.status_code", status)
    if status >= _SERVER_ERROR:
        span.set_attribute(genai.ERROR_TYPE, str(status))
        span.set_status(Status(StatusCode.ERROR))
