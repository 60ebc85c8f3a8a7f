"""Spans by OpenTelemetry's GenAI semantic conventions, one trace per job.

A job's `invoke_agent` span lasts longer than any process that works on it: its id is reserved when the job is accepted and is
the parent of everything done for the job; the span itself is exported by whoever ends the job. Context travels as W3C
`traceparent` on job and call rows and in messages.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, DEFAULT_ON
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dualtrack import __version__
from dualtrack.settings import TelemetrySettings

Attributes = Mapping[str, str | int | float | bool]

_PROPAGATOR: Final = TraceContextTextMapPropagator()
_exports = True
"""Whether spans are exported; where nobody said so by `setup`, whoever made the provider sees to it."""
_reserved_span_id: ContextVar[int | None] = ContextVar("reserved_span_id", default=None)


class _IdGenerator(IdGenerator):
    """Random ids, but for a span whose id was reserved beforehand."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()

    def generate_trace_id(self) -> int:
        return self._random.generate_trace_id()

    def generate_span_id(self) -> int:
        return _reserved_span_id.get() or self._random.generate_span_id()


def setup(service: str, settings: TelemetrySettings) -> Callable[[], None]:
    """Make this process export spans as `dualtrack-<service>`; the function given back flushes and stops.

    Without an endpoint spans have ids, which logs carry, and record nothing.
    """
    resource = Resource.create({"service.name": f"dualtrack-{service}", "service.version": __version__})
    sampler = DEFAULT_ON if settings.otlp_endpoint else ALWAYS_OFF
    provider = TracerProvider(resource=resource, id_generator=_IdGenerator(), sampler=sampler)
    global _exports  # noqa: PLW0603 - as the provider, which is the process's
    _exports = settings.otlp_endpoint is not None
    if settings.otlp_endpoint:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter(endpoint=settings.otlp_endpoint.rstrip("/") + "/v1/traces", timeout=5)
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _tracer() -> trace.Tracer:
    return _tracer_of(trace.get_tracer_provider())


@functools.lru_cache(maxsize=1)
def _tracer_of(provider: trace.TracerProvider) -> trace.Tracer:
    return provider.get_tracer("dualtrack", __version__)


@functools.lru_cache(maxsize=4096)
def _context(parent: str) -> Context:
    """A W3C traceparent as context; one job's is read again and again."""
    return _PROPAGATOR.extract({"traceparent": parent})


@contextlib.contextmanager
def span(
    name: str, *, parent: str | None = None, kind: SpanKind = SpanKind.INTERNAL, attributes: Attributes | None = None
) -> Iterator[Span]:
    """A span around a block; `parent` is a W3C traceparent, else the current span. An exception is recorded and marks it as failed."""
    context = _context(parent) if parent else None
    if not _exports:
        within = trace.get_current_span(context)
        if within.get_span_context().is_valid:  # nobody will see a span of its own: logs tell the trace, and what it belongs to
            with trace.use_span(trace.NonRecordingSpan(within.get_span_context())) as opened:
                yield opened
            return
    with _tracer().start_as_current_span(name, context=context, kind=kind, attributes=dict(attributes or {})) as opened:
        yield opened


def traceparent() -> str:
    """The current context as W3C traceparent; empty outside of any span."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier.get("traceparent", "")


def reserve(parent: str) -> str:
    """The traceparent of a span yet to be exported (by `export_reserved`), in the parent's trace; a new trace where there is none."""
    context = trace.get_current_span(_PROPAGATOR.extract({"traceparent": parent})).get_span_context() if parent else None
    ids = RandomIdGenerator()
    trace_id = context.trace_id if context and context.is_valid else ids.generate_trace_id()
    return f"00-{trace_id:032x}-{ids.generate_span_id():016x}-01"


def export_reserved(
    reserved: str, *, parent: str, name: str, start: datetime, end: datetime, attributes: Attributes, error: str | None = None
) -> None:
    """Export the span whose id was reserved, with its true start and end; `error` marks it as failed."""
    span_id = int(reserved.split("-")[2], 16)
    context = _PROPAGATOR.extract({"traceparent": parent})
    token = _reserved_span_id.set(span_id)
    try:
        made = _tracer().start_span(
            name, context=context, kind=SpanKind.INTERNAL, attributes=dict(attributes), start_time=_nanoseconds(start)
        )
    finally:
        _reserved_span_id.reset(token)
    if error:
        made.set_status(Status(StatusCode.ERROR, error))
    made.end(_nanoseconds(end))


def _nanoseconds(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1000
