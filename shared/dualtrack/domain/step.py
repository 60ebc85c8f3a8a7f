"""A step and its calls, as recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dualtrack.domain.lifecycle import CallStatus
from dualtrack.domain.tool import FINISH_TOOL, Effect
from dualtrack.domain.usage import Usage
from dualtrack.domain.waiting import Held

KEPT_STATE: Final = "kept_state"
"""In a call's `details`: true where it left background processes or Python variables in its sandbox."""

CHILD: Final = "child_job_id"
"""In the `details` of a call that started a child: the child's id."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call, unique by (job, step, position). Its outcome is written once."""

    id: str
    job_id: str
    tenant_id: str
    step: int
    position: int
    wave: int
    """Calls of one wave run at once; a wave starts when the one before it is done."""
    tool: str
    effect: Effect
    arguments: Mapping[str, Any]
    status: CallStatus
    ok: bool | None
    """Whether the command succeeded; None until it ended."""
    preview: str
    """The observation as kept in context."""
    observation_key: str | None
    """Object that holds the whole observation, where the preview is not all of it."""
    details: Mapping[str, Any]
    attempt: int
    tries: int
    failures: int
    traceparent: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    held: Held | None = None
    """What it waits for before it may be claimed."""
    intent_at: datetime | None = None
    """Since when an external call may have happened."""
    workspace: str | None = None
    """Digest of the workspace after it, where it may have changed it."""
    due_at: datetime | None = None
    """When it is rung (again); None: not started, held or ended."""
    guarded: bool = False
    """Whether it runs only under an approval of exactly these arguments."""


@dataclass(frozen=True, slots=True)
class Step:
    """One decision of the planner."""

    job_id: str
    number: int
    """From 1."""
    thought: str
    reflection: str
    note: str
    """What the platform told the model after it."""
    model: str
    usage: Usage
    latency_s: float
    created_at: datetime
    calls: tuple[Call, ...] = ()

    @property
    def finish(self) -> Call | None:
        """The accepted call of `finish`, if this step claims to be the last."""
        return next((call for call in self.calls if call.tool == FINISH_TOOL and call.ok), None)

    @property
    def verifications(self) -> tuple[Call, ...]:
        """What the engine itself runs after an accepted `finish`: the job's checks, then its outputs saved."""
        return tuple(call for call in self.calls if call.effect is not Effect.CONTROL) if self.finish is not None else ()


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file the job kept."""

    id: str
    job_id: str
    tenant_id: str
    call_id: str
    name: str
    path: str
    description: str
    size: int
    sha256: str
    blob_key: str
    content_type: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class StoredFile:
    """An uploaded file."""

    id: str
    tenant_id: str
    filename: str
    size: int
    sha256: str
    blob_key: str
    content_type: str
    created_at: datetime
