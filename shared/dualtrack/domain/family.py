"""Families of jobs as they are shown: whom a job waits for, and what it and all jobs below it came to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dualtrack.domain.budgets import Spent
from dualtrack.domain.lifecycle import JobStatus


@dataclass(frozen=True, slots=True)
class AwaitedChild:
    """A child whose end a call of its parent waits for."""

    job_id: str
    call_id: str
    since: datetime
    """When it was started."""
    status: JobStatus
    reason: str | None
    message: str | None


@dataclass(frozen=True, slots=True)
class Family:
    """A job with all jobs below it: its children, theirs, and so on."""

    jobs: int
    """Below it, the ended ones included."""
    live: int
    """Of those, the ones that have not ended."""
    waiting: int
    """Of those, the ones that wait for somebody."""
    spent: Spent
    """By the job itself and those below it."""
    complete: bool = True
    """False: there are more jobs than `limits.FAMILY_JOBS`, and the figures leave some out."""
