"""Files that jobs kept."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path, Response

from dualtrack.db import jobs, steps
from dualtrack.domain.errors import NotFound
from dualtrack.domain.ids import is_id
from dualtrack.domain.step import Artifact
from router.auth import CallerDep
from router.dependencies import ServicesDep
from router.download import DESCRIPTION, download
from router.errors import documented
from router.jobs import JobId, job_id_of
from router.pagination import DEFAULT_LIMIT, KNOWN_QUERY, AfterIdQuery, LimitQuery, cursor, cut, page_size
from router.services import RouterServices
from router.views import ArtifactView, ListView, listed

router: Final = APIRouter(tags=["artifacts"])

ArtifactId = Annotated[str, Path(description="Id of an artifact, `art_…`.")]


@router.get("/v1/jobs/{job_id}/artifacts", summary="List a job's artifacts", responses=documented(404), dependencies=[KNOWN_QUERY])
def list_artifacts(
    job_id: JobId, caller: CallerDep, services: ServicesDep, limit: LimitQuery = DEFAULT_LIMIT, after: AfterIdQuery = None
) -> ListView[ArtifactView]:
    """Oldest first."""
    known = job_id_of(job_id)
    size = page_size(limit, services.runtime.limits.page_size)
    last = cursor(after, "art")
    with services.runtime.database.transaction() as tx:
        jobs.get(tx, known, tenant_id=caller.tenant_id)
        rows, more = cut(steps.artifact_page(tx, known, limit=size + 1, after=last), size)
    return listed([ArtifactView.of(row) for row in rows], [row.id for row in rows], has_more=more)


@router.get("/v1/artifacts/{artifact_id}", summary="Show an artifact", responses=documented(404))
def show(artifact_id: ArtifactId, caller: CallerDep, services: ServicesDep) -> ArtifactView:
    """What is known of an artifact."""
    return ArtifactView.of(_artifact(services, artifact_id, caller.tenant_id))


@router.get(
    "/v1/artifacts/{artifact_id}/content",
    summary="Download an artifact",
    response_class=Response,
    responses={**documented(404), **DESCRIPTION},
)
def content(artifact_id: ArtifactId, caller: CallerDep, services: ServicesDep) -> Response:
    """The artifact's bytes."""
    return _download(services, _artifact(services, artifact_id, caller.tenant_id))


@router.get(
    "/v1/jobs/{job_id}/artifacts/{artifact_id}/content",
    summary="Download a job's artifact",
    response_class=Response,
    responses={**documented(404), **DESCRIPTION},
)
def content_of_job(job_id: JobId, artifact_id: ArtifactId, caller: CallerDep, services: ServicesDep) -> Response:
    """The same under the job's address."""
    artifact = _artifact(services, artifact_id, caller.tenant_id)
    if artifact.job_id != job_id_of(job_id):
        raise _missing(artifact_id)
    return _download(services, artifact)


def _missing(artifact_id: str) -> NotFound:
    return NotFound(f"There is no artifact {artifact_id[:64]!r}.", param="artifact_id")


def _artifact(services: RouterServices, artifact_id: str, tenant_id: str) -> Artifact:
    if not is_id(artifact_id, "art"):
        raise _missing(artifact_id)
    with services.runtime.database.transaction() as tx:
        return steps.artifact(tx, artifact_id, tenant_id=tenant_id)


def _download(services: RouterServices, artifact: Artifact) -> Response:
    return download(
        services.runtime.store,
        services.runtime.limits,
        key=artifact.blob_key,
        filename=artifact.name.rpartition("/")[2],
        content_type=artifact.content_type,
        size=artifact.size,
        sha256=artifact.sha256,
    )
