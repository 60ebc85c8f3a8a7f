"""What is asked of a job on its way: pause and resume."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Response

from dualtrack.db import jobs
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.engine import steering
from router.auth import CallerDep
from router.dependencies import ServicesDep
from router.errors import documented
from router.jobs import JobId, job_id_of
from router.views import JobView

router: Final = APIRouter(tags=["jobs"])

_PAUSED: Final[dict[int | str, dict[str, Any]]] = {
    **documented(404, 409),
    200: {"model": JobView, "description": "It waits."},
    202: {"model": JobView, "description": "What runs is being finished; then it waits."},
}


@router.post("/v1/jobs/{job_id}/pause", summary="Pause a job", responses=_PAUSED)
def pause(job_id: JobId, caller: CallerDep, services: ServicesDep, response: Response) -> JobView:
    """Start nothing more: a decision or calls at work are finished and kept, then the job waits. Asking again changes nothing."""
    known = job_id_of(job_id)
    with services.runtime.database.transaction() as tx:
        steering.pause(tx, services.runtime, jobs.get(tx, known, tenant_id=caller.tenant_id, lock=True), by=caller.key_id)
        job = jobs.get(tx, known)
    if job.status is not JobStatus.WAITING:
        response.status_code = 202
    return JobView.of(job)


@router.post("/v1/jobs/{job_id}/resume", summary="Resume a paused job", responses=documented(404, 409))
def resume(job_id: JobId, caller: CallerDep, services: ServicesDep) -> JobView:
    """Let a paused job go on where it stopped; its wall time did not run meanwhile. One that is not paused is left as it is."""
    known = job_id_of(job_id)
    with services.runtime.database.transaction() as tx:
        steering.resume(tx, services.runtime, jobs.get(tx, known, tenant_id=caller.tenant_id, lock=True), by=caller.key_id)
        return JobView.of(jobs.get(tx, known))
