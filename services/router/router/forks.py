"""Going on from an earlier point of a job as a new one: fork and retry."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Response

from dualtrack.db.engine import Database
from dualtrack.domain.forking import Changes, Fork
from dualtrack.domain.job import Job
from dualtrack.engine import forks, intake
from router.auth import CallerDep
from router.dependencies import ServicesDep
from router.errors import documented
from router.idempotency import OnceDep, repeated
from router.job_views import JobView, answered
from router.jobs import JobId, job_id_of
from router.services import RouterServices
from router.text import require_clean

router: Final = APIRouter(tags=["jobs"])

_MADE: Final[dict[int | str, dict[str, Any]]] = {
    **documented(404, 408, 409, 413, 415),
    **repeated(JobView),
    201: {"model": JobView, "description": "The new job.", "headers": {"Location": {"schema": {"type": "string"}}}},
}
_EXAMPLES: Final = {
    "another way": {"value": {"step": 4, "message": "Don't install anything: the standard library is enough."}},
    "another model": {"value": {"step": 0, "agent": {"model": "fast"}, "limits": {"steps": 10}}},
}


@router.post("/v1/jobs/{job_id}/fork", status_code=201, summary="Go on from a step as a new job", responses=_MADE)
def fork(
    job_id: JobId,
    request: Annotated[Fork, Body(openapi_examples=_EXAMPLES)],
    caller: CallerDep,
    services: ServicesDep,
    response: Response,
    once: OnceDep,
) -> JobView:
    """Start a new job with this one's steps 1 to `step`, its context and its workspace as they were then; this one is left alone.

    What is copied is not done again and costs the new job nothing. 409: the step has not ended, or was cut short before it did anything
    outside.
    """
    require_clean(request.model_dump())
    if once.made is not None:
        return _again(services, caller.tenant_id, once.made, response)
    job, new = forks.fork(
        services.runtime,
        tenant_id=caller.tenant_id,
        job_id=job_id_of(job_id),
        step=request.step,
        changes=request,
        known_models=[info.id for info in services.gateway.models()],
        key_id=caller.key_id,
        once=once.key,
    )
    return _shown(services.runtime.database, job, response, new=new)


@router.post("/v1/jobs/{job_id}/retry", status_code=201, summary="Try a job again that did not succeed", responses=_MADE)
def retry(
    job_id: JobId,
    caller: CallerDep,
    services: ServicesDep,
    response: Response,
    once: OnceDep,
    changes: Annotated[Changes | None, Body()] = None,
) -> JobView:
    """Fork an ended job from the step from which that makes sense: the last one that was brought to its end.

    A step that gave up, answers that were no action and calls that failed the same way again and again are not kept; a step in which an
    external call was begun or a child started always is. 409: it has not ended, or has succeeded.
    """
    wanted = changes or Changes()
    require_clean(wanted.model_dump())
    if once.made is not None:
        return _again(services, caller.tenant_id, once.made, response)
    job, new = forks.retry(
        services.runtime,
        tenant_id=caller.tenant_id,
        job_id=job_id_of(job_id),
        changes=wanted,
        known_models=[info.id for info in services.gateway.models()],
        key_id=caller.key_id,
        once=once.key,
    )
    return _shown(services.runtime.database, job, response, new=new)


def _again(services: RouterServices, tenant_id: str, job_id: str, response: Response) -> JobView:
    return _shown(services.runtime.database, intake.again(services.runtime, tenant_id=tenant_id, job_id=job_id), response, new=False)


def _shown(database: Database, job: Job, response: Response, *, new: bool) -> JobView:
    if not new:
        response.status_code = 200
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return answered(database, job)
