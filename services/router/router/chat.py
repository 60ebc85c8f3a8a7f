"""The fast track: OpenAI's chat completions, plain and streamed. No queue, and no database write in the way."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Request, Response
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from dualtrack.db.tenants import Caller
from dualtrack.domain.errors import DualtrackError
from dualtrack.models.chat_body import ChatBody
from dualtrack.models.port import ModelGateway
from dualtrack.telemetry import genai, tracing
from router import errors, sse
from router.auth import CallerDep
from router.dependencies import KeyBudgetsDep, MetricsDep, ServicesDep
from router.key_budgets import KeyBudgets
from router.metrics import Metrics
from router.text import require_clean

_LOG: Final = logging.getLogger(__name__)
_EXAMPLE: Final = {"model": "fast", "messages": [{"role": "user", "content": "What is the capital of France?"}]}

router: Final = APIRouter(tags=["chat"])


@router.post(
    "/v1/chat/completions",
    summary="Answer a chat",
    response_class=Response,
    responses={
        **errors.documented(404, 408, 413, 415, 429, 502, 504),
        200: {
            "description": "The answer, or its chunks as server-sent events that end with `data: [DONE]`.",
            "content": {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {}},
        },
    },
)
async def complete(
    request: Request,
    body: Annotated[ChatBody, Body(openapi_examples={"question": {"value": _EXAMPLE}})],
    caller: CallerDep,
    services: ServicesDep,
    metrics: MetricsDep,
    key_budgets: KeyBudgetsDep,
) -> Response:
    """OpenAI's `POST /v1/chat/completions`. `model` is a track (`fast`) or a configured model; `GET /v1/models` lists them.

    A streamed answer that fails on its way ends with an event of type `error` that carries the usual error object.
    """
    raw: dict[str, Any] = await request.json()  # parsed once by the framework and remembered by the request
    require_clean(raw)
    await key_budgets.require(caller)
    chat = _Chat(services.gateway, metrics, key_budgets, raw, caller=caller, request_id=request.state.request_id)
    if body.stream:
        return sse.EventStream(chat.frames(wants_usage=body.wants_usage))
    async with sse.until_gone(request.receive):
        answer = await chat.answer()
    return Response(json.dumps(answer, separators=(",", ":")), media_type="application/json")


class _Chat:
    """One question on its way through the gateway, under its span."""

    def __init__(
        self, gateway: ModelGateway, metrics: Metrics, key_budgets: KeyBudgets, body: Mapping[str, Any], *, caller: Caller, request_id: str
    ) -> None:
        self._gateway = gateway
        self._metrics = metrics
        self._key_budgets = key_budgets
        self._key_id = caller.key_id
        self._body = body
        self._request_id = request_id
        self._attributes = {genai.OPERATION: genai.CHAT, genai.REQUEST_MODEL: str(body["model"]), genai.TENANT_ID: caller.tenant_id}

    async def answer(self) -> dict[str, Any]:
        """The whole answer."""
        with self._span() as span, _coded(span):
            answer = await self._gateway.chat(self._body)
            self._record(span, answer)
            return answer

    async def frames(self, *, wants_usage: bool) -> AsyncGenerator[bytes, None]:
        """The chunks as events. Usage is always asked for, since it is counted; the caller gets it where it asked too."""
        options = self._body.get("stream_options") or {}
        body = {**self._body, "stream": True, "stream_options": {**options, "include_usage": True}}
        asked = time.perf_counter()
        begun = False
        with self._span() as span:
            try:
                async with _closing(self._gateway.chat_stream(body)) as chunks:
                    async for chunk in chunks:
                        if not begun:
                            begun = True
                            self._metrics.first_chunk(self._known(chunk.get("model")), time.perf_counter() - asked)
                        if chunk.get("usage"):
                            self._record(span, chunk)
                            if not wants_usage and not chunk.get("choices"):
                                continue
                        yield sse.frame(chunk)
            except Exception as error:
                code = error.code if isinstance(error, DualtrackError) else errors.INTERNAL
                span.set_attribute(genai.ERROR_TYPE, code)
                if not begun:  # nothing is sent yet: an ordinary error response
                    raise
                span.set_status(Status(StatusCode.ERROR))
                if not isinstance(error, DualtrackError):
                    _LOG.exception("stream failed", extra={"request_id": self._request_id})
                    error = errors.internal(self._request_id)
                yield sse.frame(errors.shape(error), event="error")
                return
        yield sse.DONE

    def _span(self) -> contextlib.AbstractContextManager[Span]:
        return tracing.span(f"{genai.CHAT} {self._body['model']}", kind=SpanKind.CLIENT, attributes=self._attributes)

    def _record(self, span: Span, answer: Mapping[str, Any]) -> None:
        usage = answer.get("usage") or {}
        taken, given = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
        span.set_attributes({genai.RESPONSE_MODEL: str(answer.get("model")), genai.INPUT_TOKENS: taken, genai.OUTPUT_TOKENS: given})
        self._metrics.chat(self._known(answer.get("model")), taken, given)
        if usage:
            self._key_budgets.spend(self._key_id, str(answer.get("model")), usage)

    def _known(self, model: object) -> str:
        """A model's name as a metrics label: only configured ones, so that there are few."""
        return str(model) if any(info.id == model for info in self._gateway.models()) else "other"


@contextlib.contextmanager
def _coded(span: Span) -> Iterator[None]:
    """Put an error's code on the span."""
    try:
        yield
    except DualtrackError as error:
        span.set_attribute(genai.ERROR_TYPE, error.code)
        raise


@contextlib.asynccontextmanager
async def _closing(chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """Close the stream at the end of the block, and with it the connection to the provider."""
    try:
        yield chunks
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()
