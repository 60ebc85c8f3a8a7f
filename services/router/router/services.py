"""What the API is served from."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from dualtrack.engine.runtime import Runtime
from dualtrack.models.port import ModelGateway
from dualtrack.settings import RouterSettings


@dataclass(frozen=True, slots=True)
class RouterServices:
    """Put together once by the process that serves: the router's own, or standalone."""

    runtime: Runtime
    gateway: ModelGateway
    settings: RouterSettings
    metrics: tuple[CollectorRegistry, ...] = ()
    """Further ones of this process, that `/metrics` shows beside the router's own."""
