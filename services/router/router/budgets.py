"""Budgets: raising a job's limits, and what a key used."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, ConfigDict, Field

from dualtrack.db import budgets, jobs
from dualtrack.domain.budgets import KeyDay
from dualtrack.domain.limits import LimitsChange
from dualtrack.engine import extension
from router.auth import CallerDep
from router.dependencies import ServicesDep
from router.errors import documented
from router.job_views import JobView, shown
from router.jobs import JobId, job_id_of
from router.pagination import KNOWN_QUERY
from router.times import Day
from router.views import UsageView

router: Final = APIRouter(tags=["jobs"])


class Extension(BaseModel):
    """What is to be raised."""

    model_config = ConfigDict(extra="forbid")

    limits: LimitsChange = Field(description="New ceilings, absolute, none lower than now.")


class KeyUsageView(BaseModel):
    """What a key used on a day."""

    object: Literal["key_usage"] = "key_usage"
    key_id: str
    day: date = Field(description="UTC.")
    usage: UsageView
    limit_tokens: int | None = Field(description="Tokens that the key may use in a day; null: no limit.")
    limit_cost_usd: Decimal | None = Field(description="US dollars that the key may cost in a day; null: no limit.")
    ends_at: datetime = Field(description="When the next day begins.")

    @classmethod
    def of(cls, found: KeyDay) -> KeyUsageView:
        """The view of a key's day."""
        return cls(
            key_id=found.key_id,
            day=found.day,
            usage=UsageView.of(found.usage),
            limit_tokens=found.tokens,
            limit_cost_usd=found.cost_usd,
            ends_at=found.ends_at,
        )


@router.post("/v1/jobs/{job_id}/extend", summary="Raise a job's limits", responses=documented(404, 408, 409, 413, 415))
def extend(
    job_id: JobId,
    body: Annotated[Extension, Body(openapi_examples={"more steps": {"value": {"limits": {"steps": 100}}}})],
    caller: CallerDep,
    services: ServicesDep,
) -> JobView:
    """A job that waits for a budget goes on if there is room now; if not, its `message` says what is short. Asking again changes nothing.

    A job that has ended can't be extended (409).
    """
    known = job_id_of(job_id)
    with services.runtime.database.transaction() as tx:
        job = jobs.get(tx, known, tenant_id=caller.tenant_id, lock=True)
        extension.extend(tx, services.runtime, job, body.limits, by=caller.key_id)
        return shown(tx, jobs.get(tx, known))


@router.get("/v1/usage", summary="What the key used in a day", responses=documented(), dependencies=[KNOWN_QUERY])
def usage(
    caller: CallerDep,
    services: ServicesDep,
    day: Annotated[Day | None, Query(description="A day (UTC), `2026-11-30`; else today.")] = None,
) -> KeyUsageView:
    """Tokens and price of all model calls of the jobs and chats of the key that asks, and what it may use in a day."""
    with services.runtime.database.transaction() as tx:
        return KeyUsageView.of(budgets.key_day(tx, caller.key_id, services.runtime.limits, day=day))
