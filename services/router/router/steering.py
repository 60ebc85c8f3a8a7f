"""What is asked of a job on its way: pause, resume, messages."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from dualtrack.db import idempotency, jobs, messages
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.domain.message import Content
from dualtrack.engine import steering
from router.auth import CallerDep
from router.dependencies import ServicesDep
from router.errors import documented
from router.idempotency import OnceDep, repeated
from router.job_views import JobView, shown
from router.jobs import JobId, job_id_of
from router.no_fields import NO_FIELDS
from router.pagination import DEFAULT_LIMIT, KNOWN_QUERY, AfterNumberQuery, LimitQuery, cut, page_size
from router.text import require_clean
from router.views import MessagePage, MessageView

router: Final = APIRouter(tags=["jobs"])

_PAUSED: Final[dict[int | str, dict[str, Any]]] = {
    **documented(404, 408, 409, 413, 415),
    200: {"model": JobView, "description": "It waits."},
    202: {"model": JobView, "description": "What runs is being finished; then it waits."},
}
_LAST_MESSAGE: Final = 2**31 - 1
"""Messages are numbered by 32-bit integers."""


class NewMessage(BaseModel):
    """A message to a job."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"content": "Leave out the year 2024."}]})

    content: Content = Field(description="What the agent is to take up, in plain words.")


@router.post("/v1/jobs/{job_id}/pause", summary="Pause a job", responses=_PAUSED, dependencies=[NO_FIELDS])
def pause(job_id: JobId, caller: CallerDep, services: ServicesDep, response: Response) -> JobView:
    """Start nothing more: a decision or calls at work are finished and kept, then the job waits. Asking again changes nothing."""
    known = job_id_of(job_id)
    with services.runtime.database.transaction() as tx:
        steering.pause(tx, services.runtime, jobs.get(tx, known, tenant_id=caller.tenant_id, lock=True), by=caller.key_id)
        view = shown(tx, jobs.get(tx, known))
    if view.status is not JobStatus.WAITING:
        response.status_code = 202
    return view


@router.post(
    "/v1/jobs/{job_id}/resume", summary="Resume a paused job", responses=documented(404, 408, 409, 413, 415), dependencies=[NO_FIELDS]
)
def resume(job_id: JobId, caller: CallerDep, services: ServicesDep) -> JobView:
    """Let a paused job go on where it stopped; its wall time did not run meanwhile. One that is not paused is left as it is."""
    known = job_id_of(job_id)
    with services.runtime.database.transaction() as tx:
        steering.resume(tx, services.runtime, jobs.get(tx, known, tenant_id=caller.tenant_id, lock=True), by=caller.key_id)
        return shown(tx, jobs.get(tx, known))


@router.post(
    "/v1/jobs/{job_id}/messages",
    status_code=201,
    summary="Write to a running job",
    responses={**documented(404, 408, 409, 413, 415), **repeated(MessageView)},
)
def write(job_id: JobId, message: NewMessage, caller: CallerDep, services: ServicesDep, response: Response, once: OnceDep) -> MessageView:
    """Steer a job: the agent sees the message from the next decision that is begun, and can't finish before it has.

    `after_step` tells where that was, once it is known. A paused job takes its messages up when it goes on. 409: the job has ended.
    """
    known = job_id_of(job_id)
    require_clean(message.content, "content")
    with services.runtime.database.transaction() as tx:

        def add() -> str:
            job = jobs.get(tx, known, tenant_id=caller.tenant_id, lock=True)
            return str(steering.write(tx, services.runtime, job, message.content, by=caller.key_id).number)

        number, new = idempotency.once(tx, once.key, add)
        if not new:
            response.status_code = 200
        return MessageView.of(messages.get(tx, known, int(number)))


@router.get("/v1/jobs/{job_id}/messages", summary="List the messages to a job", responses=documented(404), dependencies=[KNOWN_QUERY])
def list_messages(
    job_id: JobId, caller: CallerDep, services: ServicesDep, limit: LimitQuery = DEFAULT_LIMIT, after: AfterNumberQuery = 0
) -> MessagePage:
    """Oldest first, each with the step after which the agent saw it."""
    known = job_id_of(job_id)
    size = page_size(limit, services.runtime.limits.page_size)
    with services.runtime.database.transaction() as tx:
        jobs.get(tx, known, tenant_id=caller.tenant_id)
        rows, more = cut(messages.page(tx, known, after=min(after, _LAST_MESSAGE), limit=size + 1), size)
    last = rows[-1].number if rows else after
    return MessagePage(data=[MessageView.of(row) for row in rows], has_more=more, next_cursor=last if more else None, next_after=last)
