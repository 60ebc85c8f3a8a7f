"""Events: the append-only truth of a job. `seq` is gapless per job, from 1.

Everything that shows a job (API, streams, spans, run page, audit, trajectories) is a projection of these. What a job has used is the sum of
the `usage` of its events, but for the one at its end, which tells that sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class EventType(StrEnum):
    """What can happen in a job's life, with the fields of `data` below each (`docs/lifecycle.md` shows them)."""

    JOB_QUEUED = "job.queued"
    """the specification, inputs with path, size, sha256; of a child parent_id, parent_call_id; of a schedule's job schedule{id, at}"""
    JOB_STARTED = "job.started"
    """nothing"""
    STEP_DECIDED = "step.decided"
    """step, model, thought, reflection, calls[{id, tool, arguments}], usage, latency_s, attempt"""
    STEP_MALFORMED = "step.malformed"
    """step, model, error, raw, usage, attempt"""
    STEP_RETRYING = "step.retrying"
    """step, code, message, attempt, retry_in_s, usage where a model was paid: our machinery or the provider failed; tried again"""
    STEP_DROPPED = "step.dropped"
    """step, attempt, usage: what a model said was not recorded (it came too late, or it can't be written) and is paid for all the same"""
    PLAN_UPDATED = "plan.updated"
    """step, plan[{title, status}]"""
    CONTEXT_COMPACTED = "context.compacted"
    """through_step, summary: stands in the model's context for the steps up to it; model that wrote it (empty: none), usage, attempt"""
    CALL_STARTED = "call.started"
    """call_id, step, tool, attempt"""
    CALL_OUTPUT = "call.output"
    """call_id, step, tool, attempt, channel, offset in bytes, skipped (bytes before it that are not shown), text: a view while it runs"""
    CALL_FINISHED = "call.finished"
    """call_id, step, tool, ok, observation; where it was carried out also truncated (there is more), details, attempt, wall_s, workspace"""
    CALL_RETRYING = "call.retrying"
    """call_id, step, tool, code, message, attempt, retry_in_s"""
    CALL_CANCELLED = "call.cancelled"
    """call_id, step, tool; observation: what a command at work had said until then"""
    ARTIFACT_SAVED = "artifact.saved"
    """artifact_id, call_id, name, size, sha256, content_type"""
    CHECKS_STARTED = "checks.started"
    """step, checks, outputs"""
    CHECKS_FINISHED = "checks.finished"
    """step, passed (all of them), failed[command or output path]"""
    JOB_WAITING = "job.waiting"
    """reason, message, until: when the wait ends by itself"""
    JOB_RESUMED = "job.resumed"
    """reason: what it had waited or been held for; by, where somebody asked"""
    JOB_PAUSING = "job.pausing"
    """hold: why it stops at the next boundary; by"""
    JOB_EXTENDED = "job.extended"
    """limits as they are now; by"""
    JOB_FORKED = "job.forked"
    """in the new job: job_id and step it goes on from; workspace it begins with; messages copied; through_step, summary of the context"""
    MESSAGE_ADDED = "message.added"
    """number, content, by"""
    MESSAGE_TAKEN = "message.taken"
    """numbers, after_step: shown to the model from the next decision on"""
    APPROVAL_REQUESTED = "approval.requested"
    """approval_id, kind, call_id, step, tool, arguments, arguments_sha256, message, expires_at"""
    APPROVAL_DECIDED = "approval.decided"
    """approval_id, call_id, status, by, by_name, note; arguments and arguments_sha256 where they were edited, outcome of a call in doubt"""
    EGRESS_REQUEST = "egress.request"
    """call_id, step, tool, host, port, method, decision, reason, status, bytes_up, bytes_down, secrets (names), requests it stands for"""
    CALL_IN_DOUBT = "call.in_doubt"
    """call_id, step, tool, attempt, policy (what becomes of it): an external call may or may not have happened"""
    CHILD_STARTED = "child.started"
    """call_id, step; job_id of the child"""
    JOB_STOPPING = "job.stopping"
    """target: the end asked for; by"""
    JOB_SUCCEEDED = "job.succeeded"
    """answer, usage, steps: decisions taken"""
    JOB_FAILED = "job.failed"
    """reason, message, usage, steps"""
    JOB_CANCELLED = "job.cancelled"
    """reason, message, usage, steps"""
    JOB_EXPIRED = "job.expired"
    """reason, message, usage, steps"""


END_EVENTS = frozenset({EventType.JOB_SUCCEEDED, EventType.JOB_FAILED, EventType.JOB_CANCELLED, EventType.JOB_EXPIRED})


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event about to be written."""

    type: EventType
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """An event as written."""

    job_id: str
    seq: int
    type: EventType
    data: Mapping[str, Any]
    at: datetime
