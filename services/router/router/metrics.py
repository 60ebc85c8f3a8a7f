"""Prometheus metrics of this process, and the jobs of the platform by live status."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from dualtrack.db import jobs
from dualtrack.domain.errors import DatabaseUnavailable

UNMATCHED: Final = "unmatched"
_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_LATENCY_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """All metrics of one app, in a registry of its own. Labels take a bounded set of values."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        self._requests = Counter("dualtrack_http_requests", "Requests answered.", ["method", "route", "status"], registry=self.registry)
        self._latency = Histogram(
            "dualtrack_http_request_duration_seconds",
            "Seconds from a request to the end of its answer.",
            ["method", "route"],
            buckets=_LATENCY_S,
            registry=self.registry,
        )
        self._tokens = Counter("dualtrack_chat_tokens", "Tokens of the fast track.", ["model", "direction"], registry=self.registry)
        self._first_token = Histogram(
            "dualtrack_chat_first_chunk_seconds",
            "Seconds from a streamed chat request to its first chunk.",
            ["model"],
            buckets=_LATENCY_S,
            registry=self.registry,
        )
        self.streams: Final = Gauge(
            "dualtrack_event_streams", "Event streams and waiting requests (`wait_s`) open.", registry=self.registry
        )
        self.jobs: Final = Gauge("dualtrack_jobs", "Jobs that have not ended, by status.", ["status"], registry=self.registry)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        method = method if method in _METHODS else "other"
        self._requests.labels(method, route, str(status)).inc()
        self._latency.labels(method, route).observe(seconds)

    def chat(self, model: str, input_tokens: int, output_tokens: int) -> None:
        """Count the tokens of an answered chat; `model` is a known one."""
        self._tokens.labels(model, "input").inc(input_tokens)
        self._tokens.labels(model, "output").inc(output_tokens)

    def first_chunk(self, model: str, seconds: float) -> None:
        """Count a streamed chat's wait for its first chunk; `model` is a known one."""
        self._first_token.labels(model).observe(seconds)


router: Final = APIRouter(tags=["operations"])


@router.get("/metrics", summary="Prometheus metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def show(request: Request) -> Response:
    """Metrics in Prometheus' text format. Job counts are left out while the database is down."""
    metrics: Metrics = request.app.state.metrics
    try:
        with request.app.state.services.runtime.database.transaction() as tx:
            counts = jobs.counts(tx)
    except DatabaseUnavailable:
        metrics.jobs.clear()
    else:
        for status, count in counts.items():
            metrics.jobs.labels(status).set(count)
    shown = b"".join(generate_latest(registry) for registry in (metrics.registry, *request.app.state.services.metrics))
    return Response(shown, headers={"Content-Type": CONTENT_TYPE_LATEST})
