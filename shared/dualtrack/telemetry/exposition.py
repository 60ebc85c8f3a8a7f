"""A worker's Prometheus metrics over HTTP, for whoever scrapes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server

from dualtrack.domain.errors import InfrastructureError
from dualtrack.settings import TelemetrySettings


@contextmanager
def exposed(settings: TelemetrySettings, registry: CollectorRegistry) -> Iterator[None]:
    """Serve a registry at `/metrics` for the time of the block, if the settings name a port.

    Raises:
        InfrastructureError: the port can't be listened on.
    """
    if settings.metrics_port is None:
        yield
        return
    try:
        server, thread = start_http_server(settings.metrics_port, settings.metrics_host, registry)
    except OSError as error:
        raise InfrastructureError(
            f"Metrics can't be served on {settings.metrics_host}, port {settings.metrics_port} ({error.strerror}): set "
            "DUALTRACK_TELEMETRY__METRICS_PORT to a free one."
        ) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
