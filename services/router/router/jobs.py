"""The deep track: submit, list, show and cancel jobs."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Path, Query, Request, Response
from starlette.datastructures import QueryParams

from dualtrack.db import jobs, webhooks
from dualtrack.domain.errors import InvalidRequest, NotFound
from dualtrack.domain.ids import is_id
from dualtrack.domain.job import JobSpec, Name
from dualtrack.domain.lifecycle import TERMINAL, JobStatus
from dualtrack.engine import doorbells, intake
from dualtrack.engine.ending import request_stop
from router.auth import CallerDep
from router.dependencies import ServicesDep
from router.errors import documented
from router.idempotency import OnceDep, repeated
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
_METADATA_PARAMETER: Final = {
    "name": "metadata",
    "in": "query",
    "style": "deepObject",
    "explode": True,
    "schema": {"type": "object", "additionalProperties": {"type": "string"}},
    "description": "`metadata[key]=value` or `metadata.key=value`: only jobs that carry all of these.",
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
    intake.check_spec(spec, runtime.registry, [info.id for info in services.gateway.models()], runtime.limits, runtime.policies)
    job, new = intake.submit(runtime, tenant_id=caller.tenant_id, spec=spec, key_id=caller.key_id, once=once)
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
    openapi_extra={"parameters": [_METADATA_PARAMETER]},
)
def list_jobs(
    request: Request,
    caller: CallerDep,
    services: ServicesDep,
    status: Annotated[list[JobStatus] | None, Query(description="Only these; repeatable.")] = None,
    agent: Annotated[Name | None, Query(description="Only jobs of the agent profile of that name.")] = None,
    parent_id: Annotated[str | None, Query(max_length=64, description="Only the children of this job.")] = None,
    limit: LimitQuery = DEFAULT_LIMIT,
    after: AfterIdQuery = None,
) -> ListView[JobView]:
    """Newest first."""
    size = page_size(limit, services.runtime.limits.page_size)
    before = cursor(after, "job")
    metadata = metadata_filter(request.query_params, services.runtime.limits.metadata_entries)
    statuses = tuple(status or ())
    with services.runtime.database.transaction() as tx:
        found = jobs.page(
            tx, caller.tenant_id, limit=size + 1, before=before, statuses=statuses, agent=agent, parent_id=parent_id, metadata=metadata
        )
        rows, more = cut(found, size)
        views = row_views(tx, rows)
    return listed(views, [job.id for job in rows], has_more=more)


@router.get("/v1/jobs/{job_id}", summary="Show a job", responses=documented(404))
def show(job_id: JobId, caller: CallerDep, services: ServicesDep) -> JobView:
    """How a job stands."""
    known = job_id_of(job_id)
    with services.runtime.database.transaction() as tx:
        return shown(tx, jobs.get(tx, known, tenant_id=caller.tenant_id))


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


def metadata_filter(query: QueryParams, most: int) -> dict[str, str]:
    """The metadata asked for by `metadata[key]=value` or `metadata.key=value`.

    Raises:
        InvalidRequest: too many, or text that can't be stored and so never matches.
    """
    wanted: dict[str, Any] = {}
    for name, value in query.multi_items():
        if name.startswith("metadata[") and name.endswith("]"):
            key = name[len("metadata[") : -1]
        elif name.startswith("metadata."):
            key = name.removeprefix("metadata.")
        else:
            continue
        if wanted.setdefault(key, value) != value:
            raise InvalidRequest(f"{name}: given twice with different values; no job has both.", param=name[:100])
    if len(wanted) > most:
        raise InvalidRequest(f"metadata: at most {most} entries.", param="metadata")
    require_clean(wanted, "metadata")
    return wanted
