"""What the API takes and shows of schedules and their times."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from dualtrack.domain import cron
from dualtrack.domain.job import JobSpec
from dualtrack.domain.schedule import CatchUp, Overlap, RunOutcome, Schedule, ScheduleRun


def _checked(check: Callable[[str], Any]) -> AfterValidator:
    def validate(text: str) -> str:
        check(text)
        return text

    return AfterValidator(validate)


_Cron = Annotated[str, StringConstraints(min_length=1, max_length=cron.CRON_CHARS), _checked(cron.check)]
_Zone = Annotated[str, StringConstraints(min_length=1, max_length=cron.TIMEZONE_CHARS), _checked(cron.zone)]
_Label = Annotated[str, StringConstraints(max_length=200)]
_CRON = "Five fields: minute, hour, day of the month, month, day of the week; as in Debian's cron."
_ZONE = "IANA name of the time zone that `cron` is meant in."
_OVERLAP = (
    "When a time comes while a job of the schedule is live: `skip` it, `queue` it until that job has ended, or `cancel` that job and start."
)
_CATCH_UP = "Times missed because no scheduler ran: one job for the `latest`, or `skip` them all."
_PAUSED = "Whether it is due at no time."


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ScheduleSpec(_Closed):
    """A schedule about to be made."""

    name: _Label = Field("", description="For people.")
    cron: _Cron = Field(description=_CRON)
    timezone: _Zone = Field("UTC", description=_ZONE)
    job: JobSpec = Field(description="What is submitted each time, as in `POST /v1/jobs`.")
    overlap: Overlap = Field(Overlap.SKIP, description=_OVERLAP)
    catch_up: CatchUp = Field(CatchUp.LATEST, description=_CATCH_UP)
    paused: bool = Field(default=False, strict=True, description=_PAUSED)


class ScheduleChange(_Closed):
    """What is to be changed; all else stays."""

    name: _Label | None = Field(None, description="For people.")
    cron: _Cron | None = Field(None, description=_CRON)
    timezone: _Zone | None = Field(None, description=_ZONE)
    job: JobSpec | None = Field(
        None,
        description="All of the job's specification, in place of the one before; its webhook's secret only to change it.",
    )
    overlap: Overlap | None = Field(None, description=_OVERLAP)
    catch_up: CatchUp | None = Field(None, description=_CATCH_UP)
    paused: bool | None = Field(None, strict=True, description=_PAUSED)


class ScheduleView(BaseModel):
    """A schedule and when it is due next."""

    id: str
    object: Literal["schedule"] = "schedule"
    name: str
    cron: str
    timezone: str
    job: JobSpec = Field(description="Its webhook's secret is shown in the answers that make the schedule or are given a `job` only.")
    overlap: Overlap
    catch_up: CatchUp
    paused: bool
    next_at: datetime | None = Field(description="Null while it is paused.")
    created_at: datetime

    @classmethod
    def of(cls, schedule: Schedule, *, secret: str | None = None) -> ScheduleView:
        """The view of a schedule; `secret`: its webhook's in clear, where it is to be shown."""
        job = schedule.spec
        if job.webhook is not None:
            job = job.model_copy(update={"webhook": job.webhook.model_copy(update={"secret": secret})})
        return cls(
            id=schedule.id,
            name=schedule.name,
            cron=schedule.cron,
            timezone=schedule.timezone,
            job=job,
            overlap=schedule.overlap,
            catch_up=schedule.catch_up,
            paused=schedule.paused,
            next_at=schedule.next_at,
            created_at=schedule.created_at,
        )


class ScheduleRemoved(BaseModel):
    """A schedule that is no more."""

    id: str
    object: Literal["schedule"] = "schedule"
    deleted: Literal[True] = True


class RunView(BaseModel):
    """One time of a schedule."""

    object: Literal["schedule.run"] = "schedule.run"
    schedule_id: str
    at: datetime = Field(description="When it was due; of one that was asked for, when that was.")
    outcome: RunOutcome
    job_id: str | None
    missed: int = Field(description="Times before it that no scheduler was there for, and that it stands for; counted up to 1000.")
    manual: bool = Field(description="Asked for by somebody, not due.")
    message: str | None = Field(description="Why it was skipped, waits or failed; what was missed.")
    created_at: datetime

    @classmethod
    def of(cls, run: ScheduleRun) -> RunView:
        """The view of a time."""
        return cls(
            schedule_id=run.schedule_id,
            at=run.tick_at,
            outcome=run.outcome,
            job_id=run.job_id,
            missed=run.missed,
            manual=run.manual,
            message=run.message,
            created_at=run.created_at,
        )


class RunPage(BaseModel):
    """The newest times of a schedule."""

    object: Literal["list"] = "list"
    data: list[RunView]
    has_more: bool
    next_cursor: datetime | None = Field(description="Value of `after` for the next page; null on the last.")
