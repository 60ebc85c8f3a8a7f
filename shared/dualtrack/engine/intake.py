"""Accepting a job: checked, its inputs in the first workspace snapshot, row and first event in one transaction, then rung."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dualtrack.db import events, files, idempotency, jobs, webhooks
from dualtrack.db.engine import Transaction
from dualtrack.db.idempotency import RequestKey
from dualtrack.domain.errors import InvalidRequest, TooLarge, UnknownModel
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.ids import new_id
from dualtrack.domain.job import Job, JobSpec
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.policy import NO_REASON, Action, PolicyRule, judge
from dualtrack.domain.step import StoredFile
from dualtrack.domain.templates import require_known
from dualtrack.domain.tool import CHECK_TOOL, SAVE_TOOL
from dualtrack.domain.webhook import JobWebhook
from dualtrack.engine import doorbells
from dualtrack.engine.runtime import Runtime
from dualtrack.faults import Fault, point
from dualtrack.net import guard
from dualtrack.objects.workspace import InputFile, WorkspaceStore
from dualtrack.telemetry import tracing
from dualtrack.tools.registry import Registry
from dualtrack.webhooks.signature import new_secret


def check_spec(
    spec: JobSpec, registry: Registry, known_models: Iterable[str], limits: PlatformLimits, policies: Sequence[PolicyRule] = ()
) -> None:
    """Refuse what can't work before anything is written.

    Raises:
        InvalidRequest, TooLarge, UnknownModel, UnknownTool: naming the field.
    """
    if len(spec.instructions) > limits.instructions_chars:
        raise TooLarge(
            f"Instructions may have {limits.instructions_chars} characters: put long material into an input file.", param="instructions"
        )
    for name, value, most in (
        ("inputs", spec.inputs, limits.job_inputs),
        ("checks", spec.checks, limits.job_checks),
        ("outputs", spec.outputs, limits.job_outputs),
        ("metadata", spec.metadata, limits.metadata_entries),
    ):
        if len(value) > most:
            raise InvalidRequest(f"{name}: at most {most} entries.", param=name)
    models = list(known_models)
    if spec.agent.model not in models:
        raise UnknownModel(f"There is no model or track {spec.agent.model!r}; there are: {', '.join(models)}.", param="agent.model")
    registry.specs(spec.agent.tools)
    _check_policies(spec, registry, (*policies, *spec.agent.policies))


def _check_policies(spec: JobSpec, registry: Registry, rules: Sequence[PolicyRule]) -> None:
    """A job whose own checks or outputs are denied could never succeed."""
    own = [(f"checks.{n}", CHECK_TOOL, {"command": command}) for n, command in enumerate(spec.checks)]
    own += [(f"outputs.{n}", SAVE_TOOL, {"path": path}) for n, path in enumerate(spec.outputs)]
    for field, tool, arguments in own:
        verdict = judge(rules, registry.tool(tool).spec, arguments)
        if verdict.action is Action.DENY:
            raise InvalidRequest(f"{field}: denied by policy: {verdict.message or NO_REASON}.", param=field)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job about to be created: its inputs are found and in the object store."""

    tenant_id: str
    spec: JobSpec
    inputs: tuple[InputFile, ...]
    workspace: str | None
    webhook: JobWebhook | None
    """With its secret, which `spec` is without: a specification is shown to whoever may see the job."""


def submit(
    runtime: Runtime, *, tenant_id: str, spec: JobSpec, key_id: str | None = None, once: RequestKey | None = None
) -> tuple[Job, bool]:
    """Accept a job; the job, and whether it is new (False: the idempotency key's earlier one).

    Raises:
        NotFound: an input file that this tenant does not have.
        InvalidRequest: two inputs at the same path, or one inside the other; no such template; more network than the operator allows.
        AddressRefused: the webhook's address is one that may not be reached.
        IdempotencyMismatch: the key was used with another request.
        StorageUnavailable, DatabaseUnavailable: nothing was accepted.
    """
    prepared = prepare(runtime, tenant_id=tenant_id, spec=spec)
    with runtime.database.transaction() as tx:
        job_id, new = idempotency.once(tx, once, lambda: create(tx, runtime, prepared, key_id=key_id).id)
        job = jobs.get(tx, job_id, tenant_id=tenant_id)
        point(Fault.ROUTER_ACCEPT, job_id)
    point(Fault.ROUTER_ACCEPTED, job_id)
    if new or job.status is JobStatus.QUEUED:  # a client that asks again may do so because whoever accepted the job died before ringing
        doorbells.plan(runtime, job)
    point(Fault.ROUTER_RUNG, job_id)
    return job, new


def again(runtime: Runtime, *, tenant_id: str, job_id: str) -> Job:
    """A job that was accepted before, for whoever asks for it once more under the same idempotency key.

    They may do so because whoever accepted it died before ringing, so one that nobody has begun is rung for.

    Raises:
        NotFound: there is none.
    """
    with runtime.database.transaction() as tx:
        job = jobs.get(tx, job_id, tenant_id=tenant_id)
    if job.status is JobStatus.QUEUED:
        doorbells.plan(runtime, job)
    return job


def prepare(runtime: Runtime, *, tenant_id: str, spec: JobSpec) -> Prepared:
    """Find a job's inputs, make its first workspace and look at its webhook's address, for `create`.

    Not inside a transaction; may be done in vain.

    Raises:
        NotFound, InvalidRequest, AddressRefused, StorageUnavailable: as `submit`.
    """
    require_known(spec.agent.template, runtime.templates)
    runtime.egress.check(spec.agent.network, spec.agent.secrets, tenant_id)
    with runtime.database.transaction() as tx:
        inputs = _inputs(
            spec, [files.get(tx, item.file_id, tenant_id=tenant_id, param=f"inputs.{n}.file_id") for n, item in enumerate(spec.inputs)]
        )
    spec = spec.model_copy(
        update={"inputs": tuple(item.model_copy(update={"path": file.path}) for item, file in zip(spec.inputs, inputs, strict=True))}
    )
    workspace = WorkspaceStore(runtime.store, tenant_id, runtime.limits).from_inputs(inputs) if inputs else None
    webhook = spec.webhook
    if webhook is not None:
        guard.check(webhook.url, allow=runtime.allow, param="webhook.url")
        spec = spec.model_copy(update={"webhook": webhook.model_copy(update={"secret": None})})
    return Prepared(tenant_id, spec, tuple(inputs), workspace, webhook)


def create(
    tx: Transaction,
    runtime: Runtime,
    prepared: Prepared,
    *,
    key_id: str | None = None,
    source: Mapping[str, Any] | None = None,
    lineage: Mapping[str, Any] | None = None,
    traceparent: str | None = None,
) -> Job:
    """Create a job in the caller's transaction, who rings for it once that is committed.

    `source`: what its first event says besides. `lineage`: its columns that say what job it comes from. `traceparent`: the span that
    its own is below; None: the current one.
    """
    job_id = new_id("job")
    request = tracing.traceparent() if traceparent is None else traceparent
    jobs.create(
        tx,
        job_id=job_id,
        tenant_id=prepared.tenant_id,
        spec=prepared.spec,
        workspace=prepared.workspace,
        key_id=key_id,
        traceparent=tracing.reserve(request),
        request_traceparent=request,
        ring_s=runtime.limits.ring_s,
        lineage=lineage,
    )
    if prepared.webhook is not None:
        webhooks.add(
            tx,
            webhook_id=new_id("wh"),
            tenant_id=prepared.tenant_id,
            job_id=job_id,
            url=prepared.webhook.url,
            events=prepared.webhook.events,
            secret=runtime.sealer.seal(prepared.webhook.secret or new_secret()),
        )
    inputs = [{"path": item.path, "size": item.size, "sha256": item.sha256} for item in prepared.inputs]
    data = prepared.spec.model_dump(mode="json") | {"inputs": inputs} | dict(source or {})
    events.append(tx, job_id, NewEvent(EventType.JOB_QUEUED, data))
    return jobs.get(tx, job_id)


def _inputs(spec: JobSpec, stored: list[StoredFile]) -> list[InputFile]:
    found: dict[str, InputFile] = {}
    for n, (item, file) in enumerate(zip(spec.inputs, stored, strict=True)):
        path = item.path or file.filename
        if path in found:
            raise InvalidRequest(f"Two inputs share the path {path!r}: give each a path of its own.", param=f"inputs.{n}.path")
        for other in found:
            if path.startswith(other + "/") or other.startswith(path + "/"):
                inner, outer = max(path, other, key=len), min(path, other, key=len)
                raise InvalidRequest(
                    f"An input can't be at {inner!r} while another one is the file {outer!r}: give one of them another path.",
                    param=f"inputs.{n}.path",
                )
        found[path] = InputFile(path=path, size=file.size, sha256=file.sha256)
    return list(found.values())
