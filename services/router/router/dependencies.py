"""What routes are given by the framework."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from router.feed import EventFeed
from router.key_budgets import KeyBudgets
from router.metrics import Metrics
from router.services import RouterServices


async def _services(request: Request) -> RouterServices:
    services: RouterServices = request.app.state.services
    return services


async def _feed(request: Request) -> EventFeed:
    feed: EventFeed = request.app.state.feed
    return feed


async def _key_budgets(request: Request) -> KeyBudgets:
    key_budgets: KeyBudgets = request.app.state.key_budgets
    return key_budgets


async def _metrics(request: Request) -> Metrics:
    metrics: Metrics = request.app.state.metrics
    return metrics


ServicesDep = Annotated[RouterServices, Depends(_services)]
FeedDep = Annotated[EventFeed, Depends(_feed)]
KeyBudgetsDep = Annotated[KeyBudgets, Depends(_key_budgets)]
MetricsDep = Annotated[Metrics, Depends(_metrics)]
