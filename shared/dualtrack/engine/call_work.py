"""The work of one claimed call: its job's place made ready, the tool run there, what it left saved. Nothing is written to the database but
an external call's intent and the events of output.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from dualtrack.db import steps
from dualtrack.db.steps import LatestChange
from dualtrack.domain.doubt import DOUBTED, EARLIER, may_have_happened
from dualtrack.domain.egress import EgressRequest
from dualtrack.domain.errors import Cancelled, InvalidPath, ObjectMissing, UnknownTool
from dualtrack.domain.job import Job
from dualtrack.domain.limits import SandboxLimits
from dualtrack.domain.step import KEPT_STATE, Call
from dualtrack.domain.templates import DEFAULT_TEMPLATE
from dualtrack.domain.text import storable
from dualtrack.domain.tool import CHECK_TOOL, Effect, Observation
from dualtrack.engine import ledger, observations
from dualtrack.engine.call_output import CallOutput, OutputEvents
from dualtrack.engine.leases import Lease
from dualtrack.engine.place import Place, WayOut
from dualtrack.engine.places import Places
from dualtrack.engine.runtime import Runtime
from dualtrack.faults import Fault, point
from dualtrack.objects.blobs import BlobStore
from dualtrack.objects.cancelling import Check, check_of, interruptible
from dualtrack.objects.workspace import FileEntry, WorkspaceStore, WorkspaceTooLarge
from dualtrack.sandbox.outcome import size_text
from dualtrack.sandbox.port import Command, Outcome
from dualtrack.sandbox.sessions import Channel, PythonCell, SessionRequest
from dualtrack.tools.port import ArtifactRequest, ToolContext, ToolResult

if TYPE_CHECKING:
    from dualtrack.egress.gateway import EgressGateway, Outlet

_SKIPPED_SHOWN: Final = 10
_GONE: Final = "Not run: whoever runs this platform has taken the tool {tool} away. Do without it."
_NOT_RUN: Final = ToolResult(Observation(ok=False, text=""))


@dataclass(frozen=True, slots=True)
class Done:
    """What a call did, ready to be recorded."""

    result: ToolResult
    workspace: str | None
    artifacts: tuple[tuple[ArtifactRequest, FileEntry], ...] = ()
    observation_key: str | None = None
    wall_s: float = 0.0
    egress: tuple[EgressRequest, ...] = ()
    """What its sandbox asked of the network."""
    ran: bool = True
    """Whether the tool gave a result, or was told to stop before it could."""


@dataclass(frozen=True, slots=True)
class _Bench:
    """`tools.port.Bench` over a job's place."""

    place: Place
    request: SessionRequest
    cancel: threading.Event
    output: CallOutput
    way_out: WayOut

    def run(self, command: Command, limits: SandboxLimits) -> Outcome:
        return self.place.run(command, self.request, limits, self.cancel, self.output.take, self.way_out)

    def python(self, cell: PythonCell, limits: SandboxLimits) -> Outcome:
        return self.place.python(cell, self.request, limits, self.cancel, self.output.take, self.way_out)


class CallWork:
    """Does the work of calls. Thread-safe."""

    def __init__(
        self,
        runtime: Runtime,
        places: Places,
        output: OutputEvents,
        gateway: EgressGateway | None = None,
        template: str = DEFAULT_TEMPLATE,
    ) -> None:
        """`gateway`: what opens ways to the network, None: no sandbox has any; `template`: of the sandboxes of jobs that name none."""
        self._template = template
        self._runtime = runtime
        self._gateway = gateway
        self._places = places
        self._output = output

    def do(self, job: Job, call: Call, lease: Lease) -> Done:
        """Run the call's tool in the job's workspace, and store what it left.

        A call whose lease says `cancel` stops at once, wherever it is: it has what its tool had said until then, the workspace
        that the job had before, and nothing else is kept of it.

        Raises:
            DualtrackError: our machinery failed; whatever the tool did in the workspace is undone before the next attempt.
        """
        store = WorkspaceStore(self._runtime.store, job.tenant_id, self._runtime.limits)
        check = check_of(lease.cancel)
        started = time.monotonic()
        changes = call.effect is Effect.WORKSPACE
        workspace = job.workspace
        result = _NOT_RUN
        with (
            self._places.lease(job.id, shared=call.effect is Effect.PURE) as place,
            self._output.of(call, self._runtime.limits.sandbox) as output,
        ):
            try:
                latest = (lambda: self._latest(job.id)) if changes else None
                place.prepare(store, job.workspace, latest, alone=call.tool == CHECK_TOOL, cancel=lease.cancel)
                result = self._ran(call, self._context(job, call, lease, place, output), place)
                check()
                if changes:
                    workspace, result = self._saved(store, job, call, lease, place, result)
                keep = partial(self._kept, store, job, call, output, check, workspace, result)
                # A thread costs as much as all the rest of a short call: only where the store may keep it waiting.
                done = interruptible(keep, lease.cancel) if self._stores(result, output) else keep()
            except Cancelled:
                done = Done(_storable(result), job.workspace, ran=result is not _NOT_RUN)
            return replace(done, wall_s=time.monotonic() - started, egress=place.asked())

    def _ran(self, call: Call, context: ToolContext, place: Place) -> ToolResult:
        """What the call's tool gives."""
        try:
            tool = self._runtime.registry.tool(call.tool)
        except UnknownTool:  # taken away since the call was decided on
            return _with_doubt(call, ToolResult(Observation(ok=False, text=_GONE.format(tool=call.tool))))
        if call.effect is Effect.WORKSPACE:
            place.begin()
        if call.effect is Effect.EXTERNAL:
            point(Fault.EXTERNAL_INTEND, call.job_id)
            ledger.begin(self._runtime, call)
            point(Fault.EXTERNAL_SEND, call.job_id)
        point(Fault.EXECUTOR_EFFECT, call.job_id)
        result = tool.run(call.arguments, context)
        point(Fault.EXECUTOR_EFFECTED, call.job_id)
        if call.effect is Effect.EXTERNAL:
            point(Fault.EXTERNAL_SENT, call.job_id)
        return _with_doubt(call, result)

    def _saved(
        self, store: WorkspaceStore, job: Job, call: Call, lease: Lease, place: Place, result: ToolResult
    ) -> tuple[str | None, ToolResult]:
        """The job's workspace after a call that may have changed it, and its result with what the agent has to know of that."""
        workspace = job.workspace
        try:
            with place.standing_still(lease.cancel) as directory:
                snapshot = interruptible(partial(store.snapshot, directory, job.workspace, cancel=lease.cancel), lease.cancel)
            workspace = snapshot.digest
            point(Fault.EXECUTOR_SNAPSHOT, job.id)
            place.done(snapshot, call.id)
            result = _with_skipped(result, snapshot.skipped)
        except WorkspaceTooLarge as error:
            place.too_large(self._runtime.limits.workspace_bytes)
            note = f"The call's changes were undone: {error.message}"
            result = _with_lines(replace(result, observation=replace(result.observation, ok=False)), note)
            result = replace(result, details=dict(result.details) | {"undone": error.code})
        if notice := place.take_notice():
            result = _with_lines(result, notice)
        if place.keeps_state:
            result = replace(result, details=dict(result.details) | {KEPT_STATE: True})
        return workspace, result

    def _context(self, job: Job, call: Call, lease: Lease, place: Place, output: CallOutput) -> ToolContext:
        limits = self._runtime.limits
        request = SessionRequest(limits.sandbox, job.spec.agent.template or self._template)
        return ToolContext(
            bench=_Bench(place, request, lease.cancel, output, partial(self._way_out, job)),
            limits=limits,
            cancel=lease.cancel,
            read_observation=lambda call_id: observations.read(self._runtime, job.id, call_id),
            idempotency_key=call.id,
        )

    def _way_out(self, job: Job) -> Outlet | None:
        return None if self._gateway is None else self._gateway.open(job.spec.agent, job.tenant_id)

    def _latest(self, job_id: str) -> LatestChange | None:
        with self._runtime.database.transaction() as tx:
            return steps.latest_change(tx, job_id)

    def _stores(self, result: ToolResult, output: CallOutput) -> bool:
        """Whether there is anything of a call to be stored."""
        long = len(result.observation.text) > self._runtime.limits.observation_chars
        return long or bool(result.artifacts) or any(output.beyond(channel) is not None for channel in Channel)

    def _kept(
        self,
        store: WorkspaceStore,
        job: Job,
        call: Call,
        output: CallOutput,
        check: Check,
        workspace: str | None,
        result: ToolResult,
    ) -> Done:
        """What there is to record, all that is kept of it outside of the database stored."""
        beyond = self._beyond(job, call, output, check)
        result, kept = self._artifacts(store, workspace, result)
        for request, entry in beyond:
            result = _with_lines(result, f"[{request.description}: {request.name}, {size_text(entry.size)}]")
        result, key = self._stored(job, call, result)
        return Done(result, workspace, (*kept, *beyond), key)

    def _stored(self, job: Job, call: Call, result: ToolResult) -> tuple[ToolResult, str | None]:
        """The result as the database takes it, and where its whole observation lies if that is long."""
        result = _storable(result)
        text = result.observation.text
        if len(text) <= self._runtime.limits.observation_chars:
            return result, None
        key = observations.key(job.tenant_id, job.id, call.id, call.attempt)
        self._runtime.store.put(key, text.encode(), content_type="text/plain; charset=utf-8")
        point(Fault.EXECUTOR_OBSERVATION, job.id)
        return result, key

    def _beyond(self, job: Job, call: Call, output: CallOutput, check: Check) -> tuple[tuple[ArtifactRequest, FileEntry], ...]:
        """The output that the observation has no room for, stored."""
        found = []
        for channel in Channel:
            spooled = output.beyond(channel)
            if spooled is None:
                continue
            blob = BlobStore(self._runtime.store, job.tenant_id).put_file(spooled, check)
            name = f"{call.id}-{channel}-rest.txt"
            cut = "" if output.total(channel) == self._runtime.limits.sandbox.output_bytes + blob.size else "beginning of the "
            request = ArtifactRequest(name, name, f"{cut}rest of {channel}, kept as an artifact")
            found.append((request, FileEntry(name, blob.size, blob.sha256, blob.key, executable=False)))
        return tuple(found)

    def _artifacts(
        self, store: WorkspaceStore, workspace: str | None, result: ToolResult
    ) -> tuple[ToolResult, tuple[tuple[ArtifactRequest, FileEntry], ...]]:
        """The files a call wants kept, as the snapshot has them; a file that is not there is told to the agent."""
        kept = []
        for request in result.artifacts:
            try:
                entry = store.entry(workspace, request.path)
            except (ObjectMissing, InvalidPath) as error:
                return ToolResult(Observation(ok=False, text=f"Not saved: {error.message}"), details=result.details), ()
            if entry.size > self._runtime.limits.artifact_bytes:
                text = f"Not saved: {request.path} has {entry.size} bytes; an artifact may have {self._runtime.limits.artifact_bytes}."
                return ToolResult(Observation(ok=False, text=text), details=result.details), ()
            kept.append((request, entry))
        return result, tuple(kept)


def _storable(result: ToolResult) -> ToolResult:
    """The result as the database takes it."""
    observation = replace(result.observation, text=storable(result.observation.text))
    return replace(result, observation=observation, details=storable(result.details))


def _with_doubt(call: Call, result: ToolResult) -> ToolResult:
    """The result, with a word on an attempt before this one of which nobody knows whether it happened; a success speaks for all."""
    if result.observation.ok or not may_have_happened(call):
        return result
    return _with_lines(replace(result, details=dict(result.details) | DOUBTED), EARLIER)


def _with_lines(result: ToolResult, *lines: str) -> ToolResult:
    text = "\n".join((result.observation.text, *lines))
    return replace(result, observation=replace(result.observation, text=text))


def _with_skipped(result: ToolResult, skipped: Sequence[tuple[str, str]]) -> ToolResult:
    """The result, with a word on what goes when the sandbox does."""
    if not skipped:
        return result
    shown = "; ".join(f"{path!r} ({reason})" for path, reason in skipped[:_SKIPPED_SHOWN])
    more = f" and {len(skipped) - _SKIPPED_SHOWN} more" if len(skipped) > _SKIPPED_SHOWN else ""
    return _with_lines(result, f"[not saved with the workspace: {shown}{more}]")
