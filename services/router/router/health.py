"""Whether the process lives, and whether it can do its work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from dualtrack.db import migrate
from dualtrack.domain.errors import DualtrackError, ModelUnavailable
from router.services import RouterServices

CHECK_S: Final = 3.0
"""Seconds a check may take; a dependency slower than that counts as down."""
FRESH_S: Final = 1.0
"""Seconds an answer is given again, so that asking often costs nothing."""
_TRACKS: Final = ("fast", "deep")

router: Final = APIRouter(tags=["operations"])


class CheckView(BaseModel):
    """How one dependency is."""

    ok: bool
    message: str | None = Field(None, description="What is wrong and what to do.")


class ReadyView(BaseModel):
    """How all of them are."""

    status: Literal["ready", "not_ready"]
    checks: dict[str, CheckView] = Field(
        description="database, broker, objects; models_configured: every track has models, whose servers are not asked."
    )


class LiveView(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Readiness:
    """Checks all dependencies at once, each with a time limit and never twice at a time. For one event loop."""

    def __init__(self, services: RouterServices) -> None:
        self._services = services
        self._checks: dict[str, Callable[[], None]] = {
            "database": self._database,
            "broker": services.runtime.doorbell.check,
            "objects": services.runtime.store.check,
            "models_configured": self._models,
        }
        self._pool = ThreadPoolExecutor(len(self._checks), thread_name_prefix="readiness")
        self._running: dict[str, Future[None]] = {}
        self._schema_current = False
        self._lock = asyncio.Lock()
        self._last: tuple[float, ReadyView] | None = None

    async def look(self) -> ReadyView:
        """The answer, at most `FRESH_S` old."""
        async with self._lock:
            if self._last is not None and time.monotonic() - self._last[0] < FRESH_S:
                return self._last[1]
            results = await asyncio.gather(*(self._check(name) for name in self._checks))
            checks = dict(zip(self._checks, results, strict=True))
            view = ReadyView(status="ready" if all(check.ok for check in results) else "not_ready", checks=checks)
            self._last = (time.monotonic(), view)
            return view

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _check(self, name: str) -> CheckView:
        running = self._running.get(name)
        if running is None or running.done():  # a check that hangs keeps its one thread, not one for every question
            running = self._running[name] = self._pool.submit(self._checks[name])
        try:
            async with asyncio.timeout(CHECK_S):
                await asyncio.shield(asyncio.wrap_future(running))
        except TimeoutError:
            return CheckView(ok=False, message=f"No answer within {CHECK_S:g} s.")
        except DualtrackError as error:
            return CheckView(ok=False, message=error.message)
        except Exception as error:  # noqa: BLE001 - any failure means: not ready
            return CheckView(ok=False, message=f"The check failed: {type(error).__name__}; see the log.")
        return CheckView(ok=True)

    def _database(self) -> None:
        self._services.runtime.database.check()
        if not self._schema_current:  # schemas only move forward
            migrate.require_current(self._services.runtime.database)
            self._schema_current = True

    def _models(self) -> None:
        known = {info.id for info in self._services.gateway.models()}
        missing = [track for track in _TRACKS if track not in known]
        if missing:
            raise ModelUnavailable(f"No model is configured for the track {missing[0]}: set DUALTRACK_MODELS__TRACKS.")


@router.get("/healthz", summary="Liveness")
async def live() -> LiveView:
    """The process answers; asks nothing of its dependencies."""
    return LiveView()


@router.get("/readyz", summary="Readiness", responses={503: {"model": ReadyView, "description": "Something is down; `checks` says what."}})
async def ready(request: Request, response: Response) -> ReadyView:
    """Whether database, broker and object store can be used and models are configured, and what to do about what fails.

    Model servers are not asked: a provider would charge for every answer.
    """
    readiness: Readiness = request.app.state.readiness
    view = await readiness.look()
    if view.status != "ready":
        response.status_code = 503
    return view
