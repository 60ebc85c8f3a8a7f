"""The life of a job, as one table: from, to, cause.

The database refuses every other change of status (trigger `jobs_lifecycle`), the docs draw the same table
(`docs/lifecycle.md`), and the property tests walk it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class JobStatus(StrEnum):
    """What the API shows as a job's status."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


TERMINAL: Final = frozenset({JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.EXPIRED})


class Edge(NamedTuple):
    """One allowed change of status and why it happens."""

    source: JobStatus
    target: JobStatus
    cause: str


TRANSITIONS: Final = (
    Edge(JobStatus.QUEUED, JobStatus.RUNNING, "a planner claimed the first step"),
    Edge(JobStatus.QUEUED, JobStatus.WAITING, "paused, or out of time, before it started"),
    Edge(JobStatus.QUEUED, JobStatus.CANCELLED, "cancelled before it started"),
    Edge(JobStatus.QUEUED, JobStatus.EXPIRED, "out of time in the queue, where limits are to end it"),
    Edge(JobStatus.QUEUED, JobStatus.FAILED, "could not be started"),
    Edge(JobStatus.RUNNING, JobStatus.WAITING, "approval, budget or input needed, or paused"),
    Edge(JobStatus.WAITING, JobStatus.RUNNING, "approval, budget or input given, or resumed"),
    Edge(JobStatus.WAITING, JobStatus.QUEUED, "resumed before it started"),
    Edge(JobStatus.RUNNING, JobStatus.SUCCEEDED, "the agent finished and all checks passed"),
    Edge(JobStatus.RUNNING, JobStatus.FAILED, "no progress, an error that retries don't mend, or a limit that is to end it"),
    Edge(JobStatus.RUNNING, JobStatus.CANCELLED, "cancel asked for"),
    Edge(JobStatus.RUNNING, JobStatus.EXPIRED, "out of time, where limits are to end it"),
    Edge(JobStatus.WAITING, JobStatus.FAILED, "a person had it fail over a call in doubt, or its record can't be read"),
    Edge(JobStatus.WAITING, JobStatus.CANCELLED, "cancel asked for"),
    Edge(JobStatus.WAITING, JobStatus.EXPIRED, "nobody did what it waited for in time"),
)

_ALLOWED: Final = frozenset((edge.source, edge.target) for edge in TRANSITIONS)


def may_become(source: JobStatus, target: JobStatus) -> bool:
    """Whether a job in `source` may go to `target`."""
    return (source, target) in _ALLOWED


class CallStatus(StrEnum):
    """The life of a tool call: pending → running → one of the three ends, each written once."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


CALL_TERMINAL: Final = frozenset({CallStatus.SUCCEEDED, CallStatus.FAILED, CallStatus.CANCELLED})


class Phase(StrEnum):
    """Who has to act on a live job next (on a waiting one: once it goes on); nobody once it is terminal."""

    PLAN = "plan"
    EXECUTE = "execute"
    NONE = "none"


def mermaid() -> str:
    """The job's lifecycle as a Mermaid state diagram, drawn from `TRANSITIONS`."""
    lines = ["stateDiagram-v2", "    [*] --> queued: accepted"]
    lines += [f"    {edge.source} --> {edge.target}: {edge.cause}" for edge in TRANSITIONS]
    lines += [f"    {status} --> [*]" for status in JobStatus if status in TERMINAL]
    return "\n".join(lines) + "\n"
