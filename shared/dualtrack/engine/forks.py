"""Going on from an earlier point of a job as a new one: its steps, context and workspace up to there, and changes from there on.

Nothing of what is copied is done again: calls keep their outcomes, and their usage stays with the job that paid for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from pydantic import ValidationError

from dualtrack.db import events, forks, idempotency, jobs, messages, steps, webhooks
from dualtrack.db.engine import Transaction
from dualtrack.db.idempotency import RequestKey
from dualtrack.domain.conflicts import JobNotEnded, JobSucceeded, StepCutShort, StepNotEnded
from dualtrack.domain.errors import InvalidRequest
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.forking import Changes, as_copied, changed, cut_short, reached_out, retry_step
from dualtrack.domain.ids import new_id
from dualtrack.domain.job import Job, JobSpec
from dualtrack.domain.lifecycle import CALL_TERMINAL, TERMINAL, CallStatus, JobStatus
from dualtrack.domain.step import Step
from dualtrack.domain.webhook import JobWebhook, Webhook
from dualtrack.engine import doorbells, intake, steering
from dualtrack.engine.runtime import Runtime
from dualtrack.webhooks.sealing import Sealer

_MARGIN: Final = 2
"""Steps looked at for a retry beyond those that may have failed alike."""


def retry(
    runtime: Runtime,
    *,
    tenant_id: str,
    job_id: str,
    changes: Changes,
    known_models: Iterable[str],
    key_id: str | None = None,
    once: RequestKey | None = None,
) -> tuple[Job, bool]:
    """Go on, as a new job, from the step of an ended job from which that makes sense (`domain.forking.retry_step`).

    Raises:
        JobNotEnded, JobSucceeded: there is nothing to retry.
        NotFound, InvalidRequest, …: as `fork`.
    """
    limits = runtime.limits
    with runtime.database.transaction() as tx:
        source = jobs.get(tx, job_id, tenant_id=tenant_id)
        if source.status not in TERMINAL:
            raise JobNotEnded(f"The job has not ended: it is {source.status}. Cancel it first, or fork it from a step of your choice.")
        if source.status is JobStatus.SUCCEEDED:
            raise JobSucceeded("The job has succeeded: there is nothing to retry. Fork it from a step of your choice to go on from there.")
        last = max(limits.same_failure, limits.malformed_actions) + _MARGIN
        step = retry_step(steps.page(tx, source.id, after=max(0, source.step - last)), source.reason)
    return _go_on(runtime, source, _From(step, everything_said=True), changes, known_models, key_id, once)


def fork(
    runtime: Runtime,
    *,
    tenant_id: str,
    job_id: str,
    step: int,
    changes: Changes,
    known_models: Iterable[str],
    key_id: str | None = None,
    once: RequestKey | None = None,
) -> tuple[Job, bool]:
    """Go on from a step of a job as a new job; the job, and whether it is new (False: the idempotency key's earlier one).

    Raises:
        NotFound: there is no such job.
        InvalidRequest: there is no such step, or the changes do not fit; naming the field.
        StepNotEnded, StepCutShort: naming `step`.
        IdempotencyMismatch: the key was used with another request.
        StorageUnavailable, DatabaseUnavailable: nothing was done.
    """
    with runtime.database.transaction() as tx:
        source = jobs.get(tx, job_id, tenant_id=tenant_id)
    return _go_on(runtime, source, _From(step), changes, known_models, key_id, once)


@dataclass(frozen=True, slots=True)
class _From:
    """Where to go on from."""

    step: int
    everything_said: bool = False
    """Whether messages come along that were taken up after that step, or not yet; those not yet do in any case from the last step."""


def _go_on(
    runtime: Runtime,
    source: Job,
    point: _From,
    changes: Changes,
    known_models: Iterable[str],
    key_id: str | None,
    once: RequestKey | None,
) -> tuple[Job, bool]:
    with runtime.database.transaction() as tx:
        # What comes of a child has no family that bounds it, so it gets the limits of the one that did.
        limits = source.limits if source.root_id is None else jobs.get(tx, source.root_id).limits
        told = webhooks.of_job(tx, source.id, source.tenant_id)
    try:
        spec = _telling(changed(source.spec, limits, changes), told)
    except ValidationError as error:
        fault = error.errors()[0]
        raise InvalidRequest(
            f"{fault['msg'].removeprefix('Value error, ')}.", param=".".join(str(part) for part in fault["loc"])
        ) from error
    step = point.step
    if step > source.step:
        raise InvalidRequest(f"step: the last step of the job is {source.step}.", param="step")
    intake.check_spec(spec, runtime.registry, known_models, runtime.limits, runtime.policies)
    if spec.limits.steps <= step:
        raise InvalidRequest(
            f"limits.steps is {spec.limits.steps}, and {step} steps are done already: give the new job more than that.",
            param="limits.steps",
        )
    prepared = intake.prepare(runtime, tenant_id=source.tenant_id, spec=spec)
    with runtime.database.transaction() as tx:
        made, new = idempotency.once(tx, once, lambda: _create(tx, runtime, source.id, point, changes, prepared, key_id))
        job = jobs.get(tx, made, tenant_id=source.tenant_id)
    if new or job.status is JobStatus.QUEUED:  # as for a submission: whoever accepted it may have died before ringing
        doorbells.plan(runtime, job)
    return job, new


def _telling(spec: JobSpec, told: Webhook | None) -> JobSpec:
    """The specification with the webhook as it stands now: it may have been changed or removed since it came with the job."""
    return spec.model_copy(update={"webhook": None if told is None else JobWebhook(url=told.url, events=told.events, secret=None)})


def _sealed(sealer: Sealer, told: Webhook) -> Webhook:
    """The webhook with its secrets as they are to be stored."""
    previous = None if told.previous_secret is None else sealer.sealed(told.previous_secret)
    return replace(told, secret=sealer.sealed(told.secret), previous_secret=previous)


def _create(
    tx: Transaction, runtime: Runtime, source_id: str, point: _From, changes: Changes, prepared: intake.Prepared, key_id: str | None
) -> str:
    source = jobs.get(tx, source_id, tenant_id=prepared.tenant_id)
    step = point.step
    last = _last_step(tx, source, step)
    told = webhooks.of_job(tx, source.id, source.tenant_id)
    first = _first_workspace(tx, source, prepared)
    prepared = replace(prepared, spec=_telling(prepared.spec, told), workspace=first, webhook=None)
    job = intake.create(tx, runtime, prepared, key_id=key_id)
    if told is not None:
        webhooks.copy(tx, _sealed(runtime.sealer, told), webhook_id=new_id("wh"), job_id=job.id)
    through, summary = _summary(tx, source, step)
    workspace = _workspace(tx, source, step, first)
    values = {
        "forked_from": source.id,
        "forked_step": step,
        "step": step,
        "verified_step": step,
        "workspace": workspace,
        "plan": forks.plan(tx, source.id, step),
        "compacted_through": through,
        "summary": summary,
    }
    jobs.change(tx, job.id, values)
    cancelled = [] if last is None else [call for call in last.calls if call.status is CallStatus.CANCELLED]
    forks.copy_steps(tx, source.id, job.id, step, {call.id: as_copied(call) for call in cancelled})
    said = messages.copy(tx, source.id, job.id, through_step=step, rest=point.everything_said or step == source.step)
    data = {"job_id": source.id, "step": step, "workspace": workspace, "messages": said, "through_step": through, "summary": summary}
    events.append(tx, job.id, NewEvent(EventType.JOB_FORKED, data))
    if changes.message is not None:
        steering.write(tx, runtime, jobs.get(tx, job.id), changes.message, by=key_id or "", param="message")
    ended = last is not None and last.finish is not None and all(call.ok for call in last.verifications)
    if ended and not messages.unanswered(tx, job.id, step):
        raise InvalidRequest(
            f"Step {step} ended the job: add a message that says what is to be done now, or fork from an earlier step.", param="message"
        )
    return job.id


def _last_step(tx: Transaction, source: Job, step: int) -> Step | None:
    """The step to go on from; None for 0."""
    if step == 0:
        return None
    (found,) = steps.page(tx, source.id, after=step - 1, limit=1)
    if any(call.status not in CALL_TERMINAL for call in found.calls):
        raise StepNotEnded(f"Step {step} has not ended yet: its calls are still open. Fork from step {step - 1}, or wait.", param="step")
    if cut_short(found) and not reached_out(found):  # what reached out can't be done again, so it may be kept as it is
        raise StepCutShort(f"Step {step} was cut short: not all of its calls were made. Fork from step {step - 1}.", param="step")
    return found


def _first_workspace(tx: Transaction, source: Job, prepared: intake.Prepared) -> str | None:
    """What the first step of a job's line began with: its inputs, or, of a child, its parent's files."""
    while source.forked_from is not None:
        source = jobs.get(tx, source.forked_from)
    return source.first_workspace or prepared.workspace  # the first release did not write it down; its jobs have nothing but their inputs


def _workspace(tx: Transaction, source: Job, step: int, first: str | None) -> str | None:
    """The workspace as it was after a step, looked up in the jobs that took the steps; `first`: before the first."""
    line: Job | None = source
    while line is not None:
        own = line.forked_step or 0
        recorded, workspace = forks.workspace(tx, line.id, after=own, through=step)
        if recorded:
            return workspace
        step = min(step, own)
        line = None if line.forked_from is None else jobs.get(tx, line.forked_from)
    return first


def _summary(tx: Transaction, source: Job, step: int) -> tuple[int, str]:
    """What stood for older steps in the context of the decision after a step, looked up in the job that took that decision."""
    while source.forked_from is not None and source.forked_step is not None and step < source.forked_step:
        source = jobs.get(tx, source.forked_from)
    return forks.summary(tx, source.id, step)
