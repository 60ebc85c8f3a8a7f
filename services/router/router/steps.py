"""What a job did: its steps, and the whole observation of a call."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path, Response
from fastapi.responses import PlainTextResponse

from dualtrack.db import jobs, steps
from dualtrack.domain.conflicts import CallNotEnded
from dualtrack.domain.errors import NotFound
from dualtrack.domain.ids import is_id
from dualtrack.domain.lifecycle import CALL_TERMINAL
from dualtrack.engine import observations
from router.auth import CallerDep
from router.dependencies import ServicesDep
from router.download import missing_told
from router.errors import documented
from router.jobs import JobId, job_id_of
from router.pagination import DEFAULT_LIMIT, KNOWN_QUERY, AfterNumberQuery, LimitQuery, cut, page_size
from router.views import StepPage, StepView

router: Final = APIRouter(tags=["jobs"])

_LAST_STEP: Final = 2**31 - 1
"""Steps are numbered by 32-bit integers."""


@router.get("/v1/jobs/{job_id}/steps", summary="List a job's steps", responses=documented(404), dependencies=[KNOWN_QUERY])
def list_steps(
    job_id: JobId, caller: CallerDep, services: ServicesDep, limit: LimitQuery = DEFAULT_LIMIT, after: AfterNumberQuery = 0
) -> StepPage:
    """Oldest first, each with its calls and what came back."""
    known = job_id_of(job_id)
    size = page_size(limit, services.runtime.limits.page_size)
    with services.runtime.database.transaction() as tx:
        jobs.get(tx, known, tenant_id=caller.tenant_id)
        rows, more = cut(steps.page(tx, known, after=min(after, _LAST_STEP), limit=size + 1), size)
    last = rows[-1].number if rows else after
    return StepPage(data=[StepView.of(step) for step in rows], has_more=more, next_cursor=last if more else None, next_after=last)


@router.get(
    "/v1/jobs/{job_id}/calls/{call_id}/observation",
    summary="Read a whole observation",
    response_class=Response,
    responses={**documented(404, 409), 200: {"description": "The text.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def observation(
    job_id: JobId,
    call_id: Annotated[str, Path(description="Id of a call, `call_…`.")],
    caller: CallerDep,
    services: ServicesDep,
) -> PlainTextResponse:
    """All of what a call gave back; steps show its beginning and end only. 409 while the call has not ended."""
    known = job_id_of(job_id)
    if not is_id(call_id, "call"):
        raise NotFound(f"There is no call {call_id[:64]!r} in this job.", param="call_id")
    with services.runtime.database.transaction() as tx:
        jobs.get(tx, known, tenant_id=caller.tenant_id)
        call = steps.readable_call(tx, call_id, job_id=known)
    if call.status not in CALL_TERMINAL:
        raise CallNotEnded("The call has not ended, so there is no observation yet.", param="call_id")
    with missing_told():
        text = observations.read(services.runtime, known, call_id)
    return PlainTextResponse(text, headers={"X-Content-Type-Options": "nosniff"})
