"""What the API shows of a job, its place in its family included."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from dualtrack.db import children, job_lists
from dualtrack.db.engine import Database, Transaction
from dualtrack.domain.family import AwaitedChild, Family
from dualtrack.domain.job import AgentProfile, Job, JobInput
from dualtrack.domain.lifecycle import JobStatus, Phase
from dualtrack.domain.limits import JobLimits
from dualtrack.domain.tool import DELEGATE_TOOL
from dualtrack.domain.waiting import Hold
from dualtrack.domain.webhook import JobWebhook
from router.views import UsageView


class WaitView(BaseModel):
    """A wait: since when, and when it ends by itself."""

    since: datetime
    until: datetime = Field(description="Nobody having done what it waits for by then, the job expires.")

    @classmethod
    def of(cls, job: Job) -> WaitView | None:
        """What a waiting job shows; None for any other."""
        if job.waiting_since is None or job.waiting_until is None:
            return None
        return cls(since=job.waiting_since, until=job.waiting_until)


class AwaitedChildView(BaseModel):
    """A child that a job waits for."""

    id: str
    call_id: str = Field(description="The call of `delegate` that has its end as outcome.")
    since: datetime = Field(description="When the child was started.")
    status: JobStatus = Field(description="How it stands: the family stands still where it is `waiting`.")
    reason: str | None
    message: str | None

    @classmethod
    def of(cls, child: AwaitedChild) -> AwaitedChildView:
        """The view of such a child."""
        return cls(
            id=child.job_id, call_id=child.call_id, since=child.since, status=child.status, reason=child.reason, message=child.message
        )


class WaitingForView(BaseModel):
    """What a running job waits for, that has nothing at work itself."""

    reason: Literal["children"] = "children"
    children: list[AwaitedChildView]


class FamilyView(BaseModel):
    """A job and all jobs below it: its children, theirs, and so on."""

    jobs: int = Field(description="Jobs below it, the ended ones included.")
    live: int = Field(description="Of those, the ones that have not ended.")
    waiting: int = Field(description="Of those, the ones that wait for somebody.")
    step: int = Field(description="Decisions of the job and those below it; `limits.steps` counts these.")
    usage: UsageView = Field(description="The same of tokens and price.")
    complete: bool = Field(description="False: there are too many jobs, and the figures leave some out.")

    @classmethod
    def of(cls, family: Family) -> FamilyView:
        """The view of a family."""
        return cls(
            jobs=family.jobs,
            live=family.live,
            waiting=family.waiting,
            step=family.spent.steps,
            usage=UsageView.of(family.spent.usage),
            complete=family.complete,
        )


class JobView(BaseModel):
    """A job: what was asked for, how it stands, what came of it."""

    id: str
    object: Literal["job"] = "job"
    status: JobStatus
    reason: str | None = Field(description="Why it ended other than well, or waits: a stable code such as `limit_steps`.")
    message: str | None = Field(description="The same for a person.")
    answer: str | None = Field(description="What the agent answered; null until it succeeded.")
    plan: list[dict[str, Any]] = Field(description="The agent's plan: `title` and `status` of each item.")
    step: int = Field(description="Decisions taken so far.")
    usage: UsageView = Field(description="What it used itself; `family` counts its children.")
    stopping: JobStatus | None = Field(description="The end that was asked for while work still goes on.")
    hold: Hold | None = Field(
        description="Why nothing new is started: `paused` on request, its `budget` is used up, its `parent` is held; what runs is finished."
    )
    waiting: WaitView | None = Field(description="Since when it waits and until when; null unless `status` is `waiting`.")
    waiting_for: WaitingForView | None = Field(
        description="The children that a `running` job waits for, nothing of its own being at work; else null."
    )
    instructions: str
    inputs: list[JobInput]
    agent: AgentProfile
    limits: JobLimits
    checks: list[str]
    outputs: list[str] = Field(description="Workspace paths of files that must exist at the end; they are saved as artifacts.")
    metadata: dict[str, str]
    webhook: JobWebhook | None = Field(description="Who is told of it; the secret only in the answer to its submission.")
    priority: int
    parent_id: str | None = Field(description="The job whose call of `delegate` it is; null: nobody's child.")
    parent_call_id: str | None = Field(description="That call, which has its end as outcome.")
    root_id: str | None = Field(description="The job at the top of its family, whose limits count all of it.")
    depth: int = Field(description="How many jobs are above it.")
    children_url: str | None = Field(description="Where its children are listed; null for an agent that can't `delegate`.")
    family: FamilyView | None = Field(description="What it and its children came to; null in lists, and where it can't `delegate`.")
    forked_from: str | None = Field(description="The job whose steps it goes on from.")
    forked_step: int | None = Field(description="The last step it has from there; what it decides itself counts on from it.")
    schedule_id: str | None = Field(description="The schedule that started it, which may be removed since.")
    key_id: str | None = Field(description="The API key that submitted it, its parent or its schedule: whose budget of the day it uses.")
    last_seq: int = Field(description="Number of its newest event.")
    trace_id: str | None = Field(description="OpenTelemetry trace of all that is done for it.")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    deadline_at: datetime = Field(description="When its wall time is used up; moves on by the time that it waits.")

    @classmethod
    def of(
        cls,
        job: Job,
        *,
        awaited: Sequence[AwaitedChild] = (),
        family: Family | None = None,
        schedule_id: str | None = None,
        webhook_secret: str | None = None,
    ) -> JobView:
        """The view of a job."""
        spec = job.spec
        return cls(
            id=job.id,
            status=job.status,
            reason=job.reason,
            message=job.message,
            answer=job.answer,
            plan=[dict(item) for item in job.plan],
            step=job.step,
            usage=UsageView.of(job.usage),
            stopping=job.stopping if job.finished_at is None else None,
            hold=job.hold,
            waiting=WaitView.of(job),
            waiting_for=WaitingForView(children=[AwaitedChildView.of(child) for child in awaited]) if awaited else None,
            instructions=spec.instructions,
            inputs=list(spec.inputs),
            agent=spec.agent,
            limits=job.limits,
            checks=list(spec.checks),
            outputs=list(spec.outputs),
            metadata=spec.metadata,
            webhook=spec.webhook and spec.webhook.model_copy(update={"secret": webhook_secret}),
            priority=spec.priority,
            parent_id=job.parent_id,
            parent_call_id=job.parent_call_id,
            root_id=job.root_id,
            depth=job.depth,
            children_url=f"/v1/jobs?parent_id={job.id}" if delegates(job) else None,
            family=None if family is None else FamilyView.of(family),
            forked_from=job.forked_from,
            forked_step=job.forked_step,
            schedule_id=schedule_id,
            key_id=job.key_id,
            last_seq=job.last_seq,
            trace_id=job.traceparent.split("-")[1] if job.traceparent.count("-") == 3 else None,  # noqa: PLR2004 - W3C trace context
            created_at=job.created_at,
            started_at=job.started_at,
            finished_at=job.finished_at,
            deadline_at=job.deadline_at,
        )


def delegates(job: Job) -> bool:
    """Whether a job may have children."""
    return DELEGATE_TOOL in job.spec.agent.tools


def shown(tx: Transaction, job: Job, *, webhook_secret: str | None = None) -> JobView:
    """A job by itself, with its family. `webhook_secret`: for whom submitted it."""
    schedule_id = job_lists.schedule_ids(tx, [job.id]).get(job.id)
    if not delegates(job):
        return JobView.of(job, schedule_id=schedule_id, webhook_secret=webhook_secret)
    awaited = _awaited(tx, [job]).get(job.id, ())
    family = children.below(tx, job)
    return JobView.of(job, awaited=awaited, family=family, schedule_id=schedule_id, webhook_secret=webhook_secret)


def answered(database: Database, job: Job, *, webhook_secret: str | None = None) -> JobView:
    """The same of a job that a client submitted, which no schedule did; in a transaction of its own, where that takes one."""
    if not delegates(job):
        return JobView.of(job, webhook_secret=webhook_secret)
    with database.transaction() as tx:
        return shown(tx, job, webhook_secret=webhook_secret)


def row_views(tx: Transaction, jobs: Sequence[Job]) -> list[JobView]:
    """The rows of a list: with whom each waits for, but without what its family used, which takes a look at every job of it."""
    awaited = _awaited(tx, jobs)
    scheduled = job_lists.schedule_ids(tx, [job.id for job in jobs])
    return [JobView.of(job, awaited=awaited.get(job.id, ()), schedule_id=scheduled.get(job.id)) for job in jobs]


def _awaited(tx: Transaction, jobs: Sequence[Job]) -> dict[str, list[AwaitedChild]]:
    likely = [job.id for job in jobs if job.status is JobStatus.RUNNING and job.phase is Phase.EXECUTE and delegates(job)]
    return children.awaited(tx, likely) if likely else {}
