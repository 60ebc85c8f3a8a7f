"""From rows to domain values."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Final

from pydantic import ValidationError

from dualtrack.domain.errors import RecordUnreadable
from dualtrack.domain.job import Job, JobSpec
from dualtrack.domain.lifecycle import CallStatus, JobStatus, Phase
from dualtrack.domain.limits import STORED, JobLimits
from dualtrack.domain.message import Message
from dualtrack.domain.step import Artifact, Call, Step, StoredFile
from dualtrack.domain.tool import Effect
from dualtrack.domain.usage import Usage
from dualtrack.domain.waiting import Held, Hold

AnyRow = Any
"""A row of SQLAlchemy's or of the driver's: its columns are attributes."""


def usage_of(row: AnyRow) -> Usage:
    """The usage columns that jobs and steps share."""
    return Usage(row.input_tokens, row.output_tokens, row.cached_tokens, row.cost_usd)


class _Specs:
    """Specifications by job, as they were read last, with what they were read from: a job's is read many times. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._read: OrderedDict[str, tuple[object, JobSpec]] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, job_id: str, record: object) -> JobSpec:
        """Raises pydantic's `ValidationError`."""
        with self._lock:
            found = self._read.get(job_id)
            if found is not None and found[0] == record:
                self._read.move_to_end(job_id)
                return found[1]
        spec = JobSpec.model_validate(record, extra="ignore", context=STORED)  # a newer release may have written more fields
        with self._lock:
            self._read[job_id] = record, spec
            if len(self._read) > self._most:
                self._read.popitem(last=False)
        return spec


_SPECS: Final = _Specs(256)


def job_of(row: AnyRow) -> Job:
    """A row of `jobs`. Raises `RecordUnreadable`."""
    try:
        spec = _SPECS.read(row.id, row.spec)
    except ValidationError as error:
        raise RecordUnreadable(f"Job {row.id} can't be read by this release: {error.errors()[0]['msg']}.") from error
    return Job(
        id=row.id,
        tenant_id=row.tenant_id,
        spec=spec,
        status=JobStatus(row.status),
        phase=Phase(row.phase),
        reason=row.reason,
        message=row.message,
        answer=row.answer,
        plan=tuple(row.plan),
        step=row.step,
        workspace=row.workspace,
        last_seq=row.last_seq,
        attempt=row.attempt,
        tries=row.tries,
        failures=row.failures,
        malformed=row.malformed,
        compacted_through=row.compacted_through,
        verified_step=row.verified_step,
        stopping=JobStatus(row.stopping) if row.stopping else None,
        usage=usage_of(row),
        traceparent=row.traceparent,
        request_traceparent=row.request_traceparent,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        deadline_at=row.deadline_at,
        summary=row.summary,
        context_tokens=row.context_tokens,
        limits=spec.limits if row.limits is None else JobLimits.model_validate(row.limits, extra="ignore", context=STORED),
        key_id=row.key_id,
        hold=Hold(row.hold) if row.hold else None,
        waiting_since=row.waiting_since,
        waiting_until=row.waiting_until,
        parent_id=row.parent_id,
        parent_call_id=row.parent_call_id,
        root_id=row.root_id,
        depth=row.depth,
        forked_from=row.forked_from,
        forked_step=row.forked_step,
        first_workspace=row.first_workspace,
        messages=row.messages,
    )


def call_of(row: AnyRow) -> Call:
    """A row of `calls`."""
    return Call(
        id=row.id,
        job_id=row.job_id,
        tenant_id=row.tenant_id,
        step=row.step,
        position=row.position,
        wave=row.wave,
        tool=row.tool,
        effect=Effect(row.effect),
        arguments=row.arguments,
        status=CallStatus(row.status),
        ok=row.ok,
        preview=row.preview,
        observation_key=row.observation_key,
        details=row.details,
        attempt=row.attempt,
        tries=row.tries,
        failures=row.failures,
        traceparent=row.traceparent,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        held=Held(row.held) if row.held else None,
        intent_at=row.intent_at,
        workspace=row.workspace,
        due_at=row.due_at,
        guarded=row.guarded,
    )


def step_of(row: AnyRow, calls: tuple[Call, ...]) -> Step:
    """A row of `steps` with its calls in order."""
    return Step(
        job_id=row.job_id,
        number=row.number,
        thought=row.thought,
        reflection=row.reflection,
        note=row.note,
        model=row.model,
        usage=usage_of(row),
        latency_s=row.latency_s,
        created_at=row.created_at,
        calls=calls,
    )


def message_of(row: AnyRow) -> Message:
    """A row of `messages`."""
    return Message(**{name: getattr(row, name) for name in Message.__dataclass_fields__})


def artifact_of(row: AnyRow) -> Artifact:
    """A row of `artifacts`."""
    return Artifact(**{name: getattr(row, name) for name in Artifact.__dataclass_fields__})


def file_of(row: AnyRow) -> StoredFile:
    """A row of `files`."""
    return StoredFile(**{name: getattr(row, name) for name in StoredFile.__dataclass_fields__})
