"""The deep track: submit, list, show and cancel jobs."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter, Body, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from dualtrack.db import job_lists, jobs, webhooks
from dualtrack.db.events import Head
from dualtrack.domain.errors import InvalidRequest, NotFound
from dualtrack.domain.ids import is_id
from dualtrack.domain.job import JobSpec
from dualtrack.domain.lifecycle import TERMINAL, JobStatus
from dualtrack.engine import doorbells, intake
from dualtrack.engine.ending import request_stop
from router import sse
from router.auth import CallerDep
from router.dependencies import FeedDep, ServicesDep
from router.errors import documented
from router.idempotency import OnceDep, repeated
from router.job_fields import FieldsDep, JobPart, part, parts
from router.job_query import METADATA_PARAMETER, JobFilterDep, Order, OrderQuery
from router.job_views import JobView, answered, row_views, shown
from router.no_fields import NO_FIELDS
from router.pagination import DEFAULT_LIMIT, KNOWN_QUERY, AfterIdQuery, LimitQuery, cursor, cut, page_size
from router.text import require_clean
from router.views import ListView, listed

router: Final = APIRouter(tags=["jobs"])

JobId = Annotated[str, Path(description="Id of a job, `job_…`.", examples=["job_01k9zq7f6e4r8s3t5v7w9x1y2z"])]
_EXAMPLES: Final = {
    "report": {
        "summary": "A report from an uploaded file",
        "value": {
            "instructions": "Write report.md with the revenue of each month in orders.csv, and save it as an artifact.",
            "inputs": [{"file_id": "file_01k9zq7f6e4r8s3t5v7w9x1y2z", "path": "orders.csv"}],
            "checks": ["test -s report.md"],
            "limits": {"steps": 20},
            "metadata": {"team": "finance"},
        },
    }
}


def job_id_of(text: str) -> str:
    """The id, where it has a job id's form. Raises `NotFound` otherwise, just as for one that does not exist."""
    if not is_id(text, "job"):
        raise NotFound(f"There is no job {text[:64]!r}.", param="job_id")
    return text


@router.post(
    "/v1/jobs",
    status_code=201,
    summary="Submit a job",
    responses={
        **documented(404, 408, 409, 413, 415),
        **repeated(JobView),
        201: {"model": JobView, "description": "Accepted.", "headers": {"Location": {"schema": {"type": "string"}}}},
    },
)
def submit(
    spec: Annotated[JobSpec, Body(openapi_examples=_EXAMPLES)],
    caller: CallerDep,
    services: ServicesDep,
    response: Response,
    once: OnceDep,
) -> JobView:
    """Accepted means kept: from this answer on, the job is worked on until it ends, whatever crashes."""
    require_clean(spec.model_dump())
    runtime = services.runtime
    if once.made is None:
        intake.check_spec(spec, runtime.registry, [info.id for info in services.gateway.models()], runtime.limits, runtime.policies)
        job, new = intake.submit(runtime, tenant_id=caller.tenant_id, spec=spec, key_id=caller.key_id, once=once.key)
    else:
        job, new = intake.again(runtime, tenant_id=caller.tenant_id, job_id=once.made), False
    if not new:
        response.status_code = 200
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    secret = None
    if job.spec.webhook is not None:
        with runtime.database.transaction() as tx:
            webhook = webhooks.of_job(tx, job.id, caller.tenant_id)
        secret = runtime.sealer.open(webhook.secret) if webhook else None
    return answered(runtime.database, job, webhook_secret=secret)


@router.get(
    "/v1/jobs",
    summary="List jobs",
    responses=documented(),
    dependencies=[KNOWN_QUERY],
    response_model=ListView[JobView] | ListView[JobPart],
    openapi_extra={"parameters": [METADATA_PARAMETER]},
)
def list_jobs(
    caller: CallerDep,
    services: ServicesDep,
    wanted: JobFilterDep,
    fields: FieldsDep,
    order: OrderQuery = Order.DESC,
    limit: LimitQuery = DEFAULT_LIMIT,
    after: AfterIdQuery = None,
) -> ListView[JobView] | Response:
    """Newest first, unless `order` is `asc`. Filters add up: a job is shown where all of them fit."""
    size = page_size(limit, services.runtime.limits.page_size)
    behind = cursor(after, "job")
    with services.runtime.database.transaction() as tx:
        found = job_lists.page(tx, caller.tenant_id, limit=size + 1, wanted=wanted, cursor=behind, oldest_first=order is Order.ASC)
        rows, more = cut(found, size)
        views = row_views(tx, rows)
    if fields is not None:
        return parts(views, fields, has_more=more)
    return listed(views, [job.id for job in rows], has_more=more)


@router.get(
    "/v1/jobs/{job_id}",
    summary="Show a job",
    responses=documented(404),
    dependencies=[KNOWN_QUERY],
    response_model=JobView | JobPart,
)
async def show(
    request: Request,
    job_id: JobId,
    caller: CallerDep,
    services: ServicesDep,
    feed: FeedDep,
    fields: FieldsDep,
    wait_s: Annotated[
        float,
        Query(ge=0, allow_inf_nan=False, description="Answer when it has ended or is `waiting`, after this many seconds at the latest."),
    ] = 0,
) -> JobView | Response:
    """How a job stands; with `wait_s`, how it stands once nothing more happens by itself, or when the time is over."""
    known = job_id_of(job_id)
    runtime = services.runtime
    if wait_s > runtime.limits.long_poll_s:
        raise InvalidRequest(f"wait_s: at most {runtime.limits.long_poll_s:g} (limits.long_poll_s); ask again after that.", param="wait_s")

    def look() -> tuple[Head, JobView]:
        with runtime.database.transaction() as tx:
            job = jobs.get(tx, known, tenant_id=caller.tenant_id)
            return Head.of(job), shown(tx, job)

    until = asyncio.get_running_loop().time() + wait_s
    head, view = await run_in_threadpool(look)
    if wait_s:
        async with sse.until_gone(request.receive):
            waits = True
            while waits and not head.settled:
                waits = await feed.settled(known, head, until)
                head, view = await feed.run(look)
    return view if fields is None else part(view, fields)


@router.post(
    "/v1/jobs/{job_id}/cancel",
    summary="Cancel a job",
    dependencies=[NO_FIELDS],
    responses={
        **documented(404, 408, 409, 413, 415),
        200: {"model": JobView, "description": "It is cancelled."},
        202: {"model": JobView, "description": "It was told to stop, and will within seconds."},
    },
)
def cancel(job_id: JobId, caller: CallerDep, services: ServicesDep, response: Response) -> JobView:
    """Stop a job between and during its calls. Asking again changes nothing; a job that ended otherwise gives 409."""
    known = job_id_of(job_id)
    with services.runtime.database.transaction() as tx:
        job = jobs.get(tx, known, tenant_id=caller.tenant_id, lock=True)
        request_stop(tx, job, JobStatus.CANCELLED, by=caller.key_id)
        job = jobs.get(tx, known)
        if job.status not in TERMINAL:  # whoever works on it hears of it; should nobody, the planner ends it
            doorbells.plan_after_commit(tx, services.runtime, job)
            response.status_code = 202
        return shown(tx, job)
