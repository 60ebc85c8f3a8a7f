"""Schedules: jobs by the clock."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Response
from pydantic import AwareDatetime

from dualtrack.db import clock, idempotency, schedules
from dualtrack.db.engine import Transaction
from dualtrack.domain import cron
from dualtrack.domain.conflicts import LimitReached
from dualtrack.domain.errors import DualtrackError, NotFound
from dualtrack.domain.ids import is_id, new_id
from dualtrack.domain.job import JobSpec
from dualtrack.domain.schedule import Schedule
from dualtrack.domain.webhook import JobWebhook
from dualtrack.engine import intake
from dualtrack.engine.runtime import Runtime
from dualtrack.engine.schedules import moved, run_now
from dualtrack.webhooks.signature import new_secret
from router.auth import CallerDep
from router.dependencies import ServicesDep
from router.errors import documented
from router.idempotency import OnceDep, repeated
from router.no_fields import NO_FIELDS
from router.pagination import DEFAULT_LIMIT, KNOWN_QUERY, AfterIdQuery, LimitQuery, cursor, cut, page_size
from router.schedule_views import RunPage, RunView, ScheduleChange, ScheduleRemoved, ScheduleSpec, ScheduleView
from router.services import RouterServices
from router.text import require_clean
from router.views import ListView, listed

router: Final = APIRouter(tags=["schedules"])

ScheduleId = Annotated[str, Path(description="Id of a schedule, `sched_…`.")]


@router.post(
    "/v1/schedules",
    status_code=201,
    summary="Make a schedule",
    responses={
        **documented(404, 408, 409, 413, 415),
        **repeated(ScheduleView),
        201: {"model": ScheduleView, "description": "Made.", "headers": {"Location": {"schema": {"type": "string"}}}},
    },
)
def add(spec: ScheduleSpec, caller: CallerDep, services: ServicesDep, response: Response, once: OnceDep) -> ScheduleView:
    """The job is submitted at each time, exactly once for each, counted under the API key that made the schedule."""
    require_clean(spec.model_dump())
    runtime = services.runtime
    job = spec.job if once.made is not None else _checked(services, spec.job, caller.tenant_id)

    def create() -> str:
        if schedules.count(tx, caller.tenant_id) >= runtime.limits.schedules:
            raise LimitReached(
                f"There are {runtime.limits.schedules} schedules already, the most there may be (limits.schedules): remove one."
            )
        schedule_id = new_id("sched")
        values = spec.model_dump(mode="json", exclude={"job"})
        more = {"id": schedule_id, "tenant_id": caller.tenant_id, "key_id": caller.key_id, "spec": _stored(runtime, job)}
        next_at = None if spec.paused else cron.next_after(spec.cron, spec.timezone, clock.now(tx))
        schedules.add(tx, values | more | {"next_at": next_at})
        return schedule_id

    with runtime.database.transaction() as tx:
        schedule_id, new = idempotency.once(tx, once.key, create)
        schedule = schedules.get(tx, schedule_id, tenant_id=caller.tenant_id)
    if not new:
        response.status_code = 200
    response.headers["Location"] = f"/v1/schedules/{schedule.id}"
    return ScheduleView.of(schedule, secret=_secret(runtime, schedule))


@router.get("/v1/schedules", summary="List schedules", responses=documented(), dependencies=[KNOWN_QUERY])
def list_schedules(
    caller: CallerDep, services: ServicesDep, limit: LimitQuery = DEFAULT_LIMIT, after: AfterIdQuery = None
) -> ListView[ScheduleView]:
    """Newest first."""
    size = page_size(limit, services.runtime.limits.page_size)
    before = cursor(after, "sched")
    with services.runtime.database.transaction() as tx:
        found = schedules.page(tx, caller.tenant_id, limit=size + 1, before=before)
    rows, more = cut(found, size)
    return listed([ScheduleView.of(row) for row in rows], [row.id for row in rows], has_more=more)


@router.get("/v1/schedules/{schedule_id}", summary="Show a schedule", responses=documented(404))
def show(schedule_id: ScheduleId, caller: CallerDep, services: ServicesDep) -> ScheduleView:
    """What it submits and when it is due next."""
    with services.runtime.database.transaction() as tx:
        return ScheduleView.of(_get(tx, schedule_id, caller.tenant_id))


@router.patch("/v1/schedules/{schedule_id}", summary="Change a schedule", responses=documented(404, 408, 413, 415))
def change(schedule_id: ScheduleId, wanted: ScheduleChange, caller: CallerDep, services: ServicesDep) -> ScheduleView:
    """Fields that are left out or null stay as they are. Times that passed while it was paused are not made up for.

    A `job` whose webhook names no secret keeps the one before where the webhook's address is the same; else it gets a new one. The answer
    shows it either way, so that whoever missed the answer can send the same request again.

    A time that has come just before, and that no scheduler has acted on yet, is not lost: its job is started, or it is recorded as skipped
    where the schedule is paused.
    """
    require_clean(wanted.model_dump())
    values = wanted.model_dump(mode="json", exclude={"job"}, exclude_none=True)
    job = None if wanted.job is None else _checked(services, wanted.job, caller.tenant_id)
    with services.runtime.database.transaction() as tx:
        schedule = _get(tx, schedule_id, caller.tenant_id, lock=True)
        if job is not None:
            values["spec"] = _stored(services.runtime, job, before=schedule)
        paused = schedule.paused if wanted.paused is None else wanted.paused
        expression, zone = wanted.cron or schedule.cron, wanted.timezone or schedule.timezone
        values |= moved(tx, services.runtime, schedule, expression=expression, timezone=zone, paused=paused)
        if values:
            schedules.change(tx, schedule.id, values)
        schedule = _get(tx, schedule_id, caller.tenant_id)
    return ScheduleView.of(schedule, secret=None if wanted.job is None else _secret(services.runtime, schedule))


@router.delete("/v1/schedules/{schedule_id}", summary="Remove a schedule", responses=documented(404))
def remove(schedule_id: ScheduleId, caller: CallerDep, services: ServicesDep) -> ScheduleRemoved:
    """With its history. Its jobs stay, live ones go on."""
    with services.runtime.database.transaction() as tx:
        schedule = _get(tx, schedule_id, caller.tenant_id, lock=True)
        schedules.remove(tx, schedule.id)
    return ScheduleRemoved(id=schedule.id)


@router.post(
    "/v1/schedules/{schedule_id}/run",
    status_code=201,
    summary="Run a schedule now",
    dependencies=[NO_FIELDS],
    responses={**documented(404, 408, 409, 413, 415), **repeated(RunView), 201: {"model": RunView, "description": "Its job is submitted."}},
)
def run(schedule_id: ScheduleId, caller: CallerDep, services: ServicesDep, response: Response, once: OnceDep) -> RunView:
    """Submit its job at once, whatever the overlap policy says, also while it is paused. Its times stay as they are."""
    with services.runtime.database.transaction() as tx:
        schedule = _get(tx, schedule_id, caller.tenant_id)
        found, new = None if once.made is None else schedules.run_of_job(tx, once.made, schedule.id), False
    if found is None:
        found, new = run_now(services.runtime, schedule, once.key)
    if not new:
        response.status_code = 200
    return RunView.of(found)


@router.get("/v1/schedules/{schedule_id}/runs", summary="List a schedule's times", responses=documented(404), dependencies=[KNOWN_QUERY])
def runs(
    schedule_id: ScheduleId,
    caller: CallerDep,
    services: ServicesDep,
    limit: LimitQuery = DEFAULT_LIMIT,
    after: Annotated[AwareDatetime | None, Query(description="Cursor: `at` of the last row of the page before.")] = None,
) -> RunPage:
    """What became of its newest times, newest first; `limits.schedule_runs` are kept."""
    size = page_size(limit, services.runtime.limits.page_size)
    with services.runtime.database.transaction() as tx:
        schedule = _get(tx, schedule_id, caller.tenant_id)
        rows, more = cut(schedules.runs(tx, schedule.id, limit=size + 1, before=after), size)
    return RunPage(data=[RunView.of(row) for row in rows], has_more=more, next_cursor=rows[-1].tick_at if more else None)


def _checked(services: RouterServices, job: JobSpec, tenant_id: str) -> JobSpec:
    """A job's specification that could be submitted now."""
    runtime = services.runtime
    try:
        intake.check_spec(job, runtime.registry, [info.id for info in services.gateway.models()], runtime.limits, runtime.policies)
        intake.prepare(runtime, tenant_id=tenant_id, spec=job)
    except DualtrackError as error:
        if error.param is None:
            raise
        raise type(error)(error.message, param=f"job.{error.param}") from error
    return job


def _stored(runtime: Runtime, job: JobSpec, *, before: Schedule | None = None) -> dict[str, Any]:
    """The specification as the schedule keeps it, its webhook with a secret, so that all its jobs have the same.

    `before`: the schedule that it is to change (its row locked), whose secret goes on where the webhook's address does.
    """
    record = job.model_dump(mode="json")
    if job.webhook is not None:
        record["webhook"]["secret"] = _kept_secret(job.webhook, before) or runtime.sealer.seal(job.webhook.secret or new_secret())
    return record


def _kept_secret(webhook: JobWebhook, before: Schedule | None) -> str | None:
    """The secret, as stored, that the receiver knows already; None: there is none, or another was given."""
    same = before is not None and before.spec.webhook is not None and before.spec.webhook.url == webhook.url
    return before.secret if before is not None and same and webhook.secret is None else None


def _secret(runtime: Runtime, schedule: Schedule) -> str | None:
    return None if schedule.secret is None else runtime.sealer.open(schedule.secret)


def _get(tx: Transaction, schedule_id: str, tenant_id: str, *, lock: bool = False) -> Schedule:
    if not is_id(schedule_id, "sched"):
        raise NotFound(f"There is no schedule {schedule_id[:64]!r}.", param="schedule_id")
    return schedules.get(tx, schedule_id, tenant_id=tenant_id, lock=lock)
