"""The API, put together."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Final

from fastapi import FastAPI
from pydantic import BaseModel

from dualtrack import __version__
from router import (
    approvals,
    artifacts,
    budgets,
    chat,
    docs,
    errors,
    events,
    files,
    forks,
    forms,
    health,
    jobs,
    metrics,
    models,
    schedules,
    steering,
    steps,
    webhooks,
)
from router.auth import Keys
from router.body import BodyGate
from router.docs import DOCS
from router.envelope import Envelope
from router.feed import EventFeed
from router.health import Readiness
from router.key_budgets import KeyBudgets
from router.metrics import Metrics
from router.services import RouterServices

_DESCRIPTION: Final = """
One API for two tracks: **chat** answers while you wait (`POST /v1/chat/completions`, OpenAI's shape), a **job** plans, runs tools in a
sandbox, corrects itself and is checked before it is called done (`POST /v1/jobs`).

Every request but the operational ones needs `Authorization: Bearer <key>`. Errors are OpenAI's `{"error": {...}}` with a stable `code`.
Lists are paged by `after` and `limit`. Every answer carries `x-request-id`.
"""
_TAGS: Final = [
    {"name": "chat", "description": "The fast track."},
    {"name": "jobs", "description": "The deep track."},
    {"name": "approvals", "description": "What waits for a person: calls that need consent, questions, doubts."},
    {"name": "artifacts", "description": "Files that jobs kept."},
    {"name": "files", "description": "Files for jobs to work on."},
    {"name": "schedules", "description": "Jobs by the clock."},
    {"name": "webhooks", "description": "Who is told of jobs, signed by the Standard Webhooks specification."},
    {"name": "models", "description": "What `model` may be."},
    {"name": "operations", "description": "For whoever runs the platform; no key needed."},
]


class RootView(BaseModel):
    """Where everything is."""

    name: str = "dualtrack"
    version: str = __version__
    docs: str = DOCS
    openapi: str = "/openapi.json"
    health: str = "/healthz"
    ready: str = "/readyz"
    metrics: str = "/metrics"
    api: str = "/v1"


def create_app(services: RouterServices) -> FastAPI:
    """The ASGI app. It opens nothing itself, and closes nothing it was given; `app.state.feed.close()` ends all streams."""
    counted = Metrics()
    feed = EventFeed(services.runtime.database, services.runtime.limits, counted)
    readiness = Readiness(services)
    key_budgets = KeyBudgets(services.runtime, services.gateway)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        key_budgets.start()
        yield
        await key_budgets.aclose()
        await feed.aclose()
        readiness.close()

    app = FastAPI(
        title="Dualtrack",
        version=__version__,
        description=_DESCRIPTION,
        openapi_tags=_TAGS,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        servers=[{"url": services.settings.public_url}] if services.settings.public_url else None,
        # The framework would make spans and metrics of its own beside ours (`router.envelope`).
        telemetry={"tracing": False, "metrics": False, "logs": False},
        form_limits={"max_fields": forms.MAX_FIELDS, "max_files": 1, "max_part_size": forms.MAX_FIELD_BYTES},
    )
    app.state.services = services
    app.state.metrics = counted
    app.state.feed = feed
    app.state.readiness = readiness
    app.state.key_budgets = key_budgets
    app.state.keys = Keys(services.runtime.database)
    errors.install(app)
    docs.install(app)
    for module in (
        chat,
        models,
        jobs,
        steering,
        forks,
        budgets,
        events,
        approvals,
        steps,
        artifacts,
        files,
        webhooks,
        schedules,
        health,
        metrics,
    ):
        app.include_router(module.router)

    @app.get("/", summary="Where everything is", tags=["operations"])
    async def root() -> RootView:
        """Name, version and addresses."""
        return RootView()

    app.add_middleware(BodyGate, limits=services.runtime.limits, keys=app.state.keys)
    app.add_middleware(Envelope, metrics=counted)  # the last one added is the outermost
    return app
