"""A schedule: a job that is submitted again and again, by the clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from dualtrack.domain.job import JobSpec


class Overlap(StrEnum):
    """What is done when a time comes while a job of the schedule is still live."""

    SKIP = "skip"
    """nothing"""
    QUEUE = "queue"
    """the new one starts when those before it have ended"""
    CANCEL = "cancel"
    """those before it are told to stop, and the new one starts"""


class CatchUp(StrEnum):
    """What is done about times that were missed because no scheduler ran."""

    LATEST = "latest"
    """one job for all of them"""
    SKIP = "skip"
    """nothing"""


class RunOutcome(StrEnum):
    """What became of one time of a schedule."""

    STARTED = "started"
    QUEUED = "queued"
    SKIPPED = "skipped"
    FAILED = "failed"
    """its job could not be created"""


@dataclass(frozen=True, slots=True)
class Schedule:
    """As the database holds it. Times are aware, UTC."""

    id: str
    tenant_id: str
    key_id: str | None
    """The API key that its jobs are counted under."""
    name: str
    cron: str
    timezone: str
    spec: JobSpec
    """Without its webhook's secret."""
    secret: str | None
    """That of its webhook, as stored: sealed, where the operator set keys (`dualtrack.webhooks.sealing`)."""
    overlap: Overlap
    catch_up: CatchUp
    paused: bool
    next_at: datetime | None
    """None while it is paused, or when it is never due again."""
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ScheduleRun:
    """One time of a schedule."""

    schedule_id: str
    tick_at: datetime
    outcome: RunOutcome
    job_id: str | None
    missed: int
    """Times before it that nobody was there for and that it stands for."""
    manual: bool
    """Asked for by somebody, not due."""
    message: str | None
    """Why it was skipped, queued or failed; what was missed."""
    created_at: datetime
