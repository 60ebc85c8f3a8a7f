"""What routes are given by the framework."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from router.feed import EventFeed
from router.metrics import Metrics
from router.services import RouterServices


async def _services(request: Request) -> RouterServices:
    services: RouterServices = request.app.state.services
    return services


async def _feed(request: Request) -> EventFeed:
    feed: EventFeed = request.app.state.feed
    return feed


async def _metrics(request: Request) -> Metrics:
    metrics: Metrics = request.app.state.metrics
    return metrics


ServicesDep = Annotated[RouterServices, Depends(_services)]
FeedDep = Annotated[EventFeed, Depends(_feed)]
MetricsDep = Annotated[Metrics, Depends(_metrics)]
