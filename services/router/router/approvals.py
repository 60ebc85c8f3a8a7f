"""What waits for a person: list, show, decide."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Body, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from dualtrack.db import approvals, jobs
from dualtrack.domain.approval import Approval, Resolution
from dualtrack.domain.errors import NotFound
from dualtrack.domain.ids import is_id
from dualtrack.domain.waiting import ApprovalKind, ApprovalStatus
from dualtrack.engine.approvals import Decisions
from router.auth import CallerDep
from router.dependencies import ServicesDep
from router.errors import documented
from router.jobs import JobId, job_id_of
from router.pagination import DEFAULT_LIMIT, KNOWN_QUERY, AfterIdQuery, LimitQuery, cursor, cut, filter_id, page_size
from router.text import require_clean
from router.views import ListView, listed

router: Final = APIRouter(tags=["approvals"])

ApprovalId = Annotated[str, Path(description="Id of an approval, `appr_…`.", examples=["appr_01k9zq7f6e4r8s3t5v7w9x1y2z"])]
StatusQuery = Annotated[list[ApprovalStatus] | None, Query(description="Only these; repeatable.")]


class DeciderView(BaseModel):
    """Who decided."""

    id: str = Field(description="Id of the API key; `scheduler` where nobody did in time, `platform` where the job ended first.")
    name: str | None = Field(description="Name of that key.")


class ApprovalView(BaseModel):
    """A request to a person about one call."""

    id: str
    object: Literal["approval"] = "approval"
    kind: ApprovalKind = Field(
        description="May this call run; a question of the agent; or an external call that may or may not have happened."
    )
    status: ApprovalStatus
    job_id: str
    call_id: str
    tool: str
    arguments: Mapping[str, Any] = Field(description="The arguments asked about; of a question, `question` and `options`.")
    arguments_sha256: str = Field(description="SHA-256 of them as canonical JSON.")
    message: str = Field(description="Why a person is asked; of a question, the question.")
    created_at: datetime
    expires_at: datetime = Field(description="When nobody's decision becomes a no.")
    decided_at: datetime | None
    decided_by: DeciderView | None
    note: str | None = Field(description="A note, the reason of a denial, an answer, or what was observed.")
    edited_arguments: Mapping[str, Any] | None = Field(description="What was approved instead of what was asked for.")
    edited_sha256: str | None
    outcome: Resolution | None = Field(description="Of kind `unknown`: what somebody said had become of the call.")

    @classmethod
    def of(cls, approval: Approval) -> ApprovalView:
        """The view of an approval."""
        same = {name: getattr(approval, name) for name in cls.model_fields if name not in {"object", "decided_by"}}
        by = None if approval.decided_by is None else DeciderView(id=approval.decided_by, name=approval.decided_by_name)
        return cls(**same, decided_by=by)


class _Decision(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ApproveBody(_Decision):
    """Let the call run."""

    arguments_sha256: str | None = Field(
        None, pattern=r"^[0-9a-fA-F]{64}$", description="Hash of the arguments that you looked at: 409 where they are others."
    )
    arguments: dict[str, Any] | None = Field(
        None, description="Run it with these instead; they must fit the tool's schema and the policies."
    )
    note: str | None = Field(None, description="For the record; the agent does not see it.")


class DenyBody(_Decision):
    """Refuse it."""

    reason: str = Field(min_length=1, description="The agent reads it.")


class AnswerBody(_Decision):
    """Answer the agent's question."""

    text: str = Field(min_length=1, description="What the agent reads; one of its options, or anything else.")


class ResolveBody(_Decision):
    """Say what became of an external call in doubt."""

    outcome: Resolution = Field(description="It happened; it did not; make it again under the same idempotency key; or fail the job.")
    observation: str | None = Field(None, min_length=1, description="What the agent reads of it, where it is not made again.")


def approval_id_of(text: str) -> str:
    """The id, where it has an approval id's form. Raises `NotFound` otherwise, just as for one that does not exist."""
    if not is_id(text, "appr"):
        raise NotFound(f"There is no approval {text[:64]!r}.", param="approval_id")
    return text


@router.get("/v1/approvals", summary="List approvals", responses=documented(), dependencies=[KNOWN_QUERY])
def list_approvals(
    caller: CallerDep,
    services: ServicesDep,
    status: StatusQuery = None,
    job_id: Annotated[str | None, Query(max_length=64, description="Only those of this job.")] = None,
    limit: LimitQuery = DEFAULT_LIMIT,
    after: AfterIdQuery = None,
) -> ListView[ApprovalView]:
    """All that was asked of people by the tenant's jobs, newest first; `status=pending` is what waits."""
    return _page(caller.tenant_id, services, filter_id(job_id, "job", "job_id"), status, limit, after)


@router.get("/v1/jobs/{job_id}/approvals", summary="List a job's approvals", responses=documented(404), dependencies=[KNOWN_QUERY])
def list_of_job(
    job_id: JobId,
    caller: CallerDep,
    services: ServicesDep,
    status: StatusQuery = None,
    limit: LimitQuery = DEFAULT_LIMIT,
    after: AfterIdQuery = None,
) -> ListView[ApprovalView]:
    """All that one job asked of people, newest first."""
    known = job_id_of(job_id)
    with services.runtime.database.transaction() as tx:
        jobs.get(tx, known, tenant_id=caller.tenant_id)
    return _page(caller.tenant_id, services, known, status, limit, after)


@router.get("/v1/approvals/{approval_id}", summary="Show an approval", responses=documented(404))
def show(approval_id: ApprovalId, caller: CallerDep, services: ServicesDep) -> ApprovalView:
    """What is asked, until when, and what was decided by whom."""
    known = approval_id_of(approval_id)
    with services.runtime.database.transaction() as tx:
        return ApprovalView.of(approvals.get(tx, known, tenant_id=caller.tenant_id))


@router.post("/v1/approvals/{approval_id}/approve", summary="Approve a call", responses=documented(404, 408, 409, 413, 415))
def approve(
    approval_id: ApprovalId, caller: CallerDep, services: ServicesDep, body: Annotated[ApproveBody | None, Body()] = None
) -> ApprovalView:
    """Let exactly this call run, or run it with other arguments. Again the same way changes nothing; another decision is 409."""
    given = body or ApproveBody()
    require_clean(given.model_dump())
    found = _decisions(caller, services).approve(
        approval_id_of(approval_id), sha256=given.arguments_sha256, arguments=given.arguments, note=given.note
    )
    return ApprovalView.of(found)


@router.post("/v1/approvals/{approval_id}/deny", summary="Deny a call", responses=documented(404, 408, 409, 413, 415))
def deny(approval_id: ApprovalId, body: DenyBody, caller: CallerDep, services: ServicesDep) -> ApprovalView:
    """Refuse a call, or to answer a question: the agent is told why, as a failure, and goes on. Denying again changes nothing."""
    require_clean(body.model_dump())
    return ApprovalView.of(_decisions(caller, services).deny(approval_id_of(approval_id), reason=body.reason))


@router.post("/v1/approvals/{approval_id}/answer", summary="Answer a question", responses=documented(404, 408, 409, 413, 415))
def answer(approval_id: ApprovalId, body: AnswerBody, caller: CallerDep, services: ServicesDep) -> ApprovalView:
    """Answer what an agent asked by `ask_human`; it goes on with the answer."""
    require_clean(body.model_dump())
    return ApprovalView.of(_decisions(caller, services).answer(approval_id_of(approval_id), text=body.text))


@router.post("/v1/approvals/{approval_id}/resolve", summary="Resolve a doubt", responses=documented(404, 408, 409, 413, 415))
def resolve(approval_id: ApprovalId, body: ResolveBody, caller: CallerDep, services: ServicesDep) -> ApprovalView:
    """Say whether an external call of which nobody knows did happen, or what to do about it."""
    require_clean(body.model_dump())
    found = _decisions(caller, services).resolve(approval_id_of(approval_id), body.outcome, observation=body.observation)
    return ApprovalView.of(found)


def _decisions(caller: CallerDep, services: ServicesDep) -> Decisions:
    return Decisions(services.runtime, tenant_id=caller.tenant_id, by=caller.key_id)


def _page(
    tenant_id: str, services: ServicesDep, job_id: str | None, status: list[ApprovalStatus] | None, limit: int, after: str | None
) -> ListView[ApprovalView]:
    size = page_size(limit, services.runtime.limits.page_size)
    before = cursor(after, "appr")
    with services.runtime.database.transaction() as tx:
        found = approvals.page(tx, tenant_id, limit=size + 1, before=before, job_id=job_id, statuses=tuple(status or ()))
    rows, more = cut(found, size)
    return listed([ApprovalView.of(row) for row in rows], [row.id for row in rows], has_more=more)
