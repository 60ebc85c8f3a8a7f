"""A check as data: what must hold, the statement that finds what breaks it, and what to do then."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

FIRST: Final = 5
"""Offenders of a check that are named."""


class Severity(StrEnum):
    """What a finding means."""

    VIOLATION = "violation"
    """A promise of the platform is broken."""
    NOTICE = "notice"
    """Nothing is broken, but somebody should know."""


class Subject(StrEnum):
    """What a check looks at, and counts."""

    JOBS = "jobs"
    STEPS = "steps"
    CALLS = "calls"
    EVENTS = "events"
    APPROVALS = "approvals"
    MESSAGES = "messages"
    DELIVERIES = "deliveries"
    WEBHOOKS = "webhooks"
    SCHEDULES = "schedules"
    OBJECTS = "objects"


@dataclass(frozen=True, slots=True)
class Check:
    """One promise about the rows of the database."""

    name: str
    """`noun.promise`, stable: scripts may name it."""
    subject: Subject
    promise: str
    """What holds, as a sentence."""
    sql: str
    """A SELECT of `job_id`, `subject` (the id of what is wrong) and `detail` (text) with one row for each offender. No bind parameters."""
    advice: str
    severity: Severity = Severity.VIOLATION


@dataclass(frozen=True, slots=True)
class Offender:
    """Something that breaks a promise."""

    job_id: str | None
    subject: str
    detail: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    name: str
    subject: Subject
    promise: str
    advice: str
    severity: Severity
    looked_at: int
    """How many of `subject` there were."""
    count: int
    """How many of them break the promise."""
    first: tuple[Offender, ...]
    """The first of those."""

    @property
    def holds(self) -> bool:
        """Whether nothing breaks the promise."""
        return self.count == 0
