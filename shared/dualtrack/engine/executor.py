"""One ring of the executor: run one tool call in a sandbox. Claim, act, record, join."""

from __future__ import annotations

import contextlib
import logging
import mimetypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from opentelemetry.trace import SpanKind, Status, StatusCode

from dualtrack.db import approvals, claims, events, jobs, steps
from dualtrack.db.engine import Transaction, assert_no_transaction
from dualtrack.db.prepared import Later
from dualtrack.db.rows import call_of
from dualtrack.db.usual_calls import Begun, Outcome
from dualtrack.domain.doubt import DOUBTED, TOLD, in_doubt, may_have_happened
from dualtrack.domain.errors import (
    DatabaseUnavailable,
    DualtrackError,
    InternalFault,
    NotFound,
    StaleAttempt,
)
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.ids import new_id
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import CallStatus, JobStatus
from dualtrack.domain.policies import backoff, gives_up
from dualtrack.domain.reasons import Reason
from dualtrack.domain.step import Call
from dualtrack.domain.templates import DEFAULT_TEMPLATE
from dualtrack.domain.text import storable
from dualtrack.domain.tool import Effect
from dualtrack.engine import flow, ledger, notices, observations, stumbles
from dualtrack.engine.call_output import OutputEvents
from dualtrack.engine.call_work import CallWork, Done
from dualtrack.engine.egress_events import egress_events
from dualtrack.engine.ending import end_job, finish_stop
from dualtrack.engine.leases import Lease
from dualtrack.engine.places import Places
from dualtrack.engine.recording import persistently
from dualtrack.engine.runtime import WorkerRuntime
from dualtrack.engine.usual_calls import UsualCalls
from dualtrack.faults import Fault, point
from dualtrack.objects.workdirs import Workdirs
from dualtrack.objects.workspace import FileEntry
from dualtrack.sandbox.sessions import Sessions
from dualtrack.telemetry import genai, tracing
from dualtrack.tools.port import ArtifactRequest
from dualtrack.work import Work, do

if TYPE_CHECKING:
    from dualtrack.egress.gateway import EgressGateway

_LOG: Final = logging.getLogger(__name__)


@contextlib.contextmanager
def open_executor(
    worker: WorkerRuntime, sessions: Sessions, workdirs: Workdirs, gateway: EgressGateway | None = None, template: str = DEFAULT_TEMPLATE
) -> Iterator[Executor]:
    """An executor with the threads it needs beside those that call it.

    Args:
        worker: what it shares with the rest of its process.
        sessions: where sandboxes are claimed.
        workdirs: directories of jobs.
        gateway: what opens ways to the network; None: no sandbox has any.
        template: of the sandboxes of jobs that name none.
    """
    database = worker.base.database

    def finished(job_ids: list[str]) -> set[str]:
        with database.transaction() as tx:
            return {job_id for job_id, head in events.heads(tx, job_ids).items() if head.ended}

    with Places(sessions, workdirs, worker.base.limits.sandbox, finished) as places, OutputEvents(database) as output:
        yield Executor(worker, CallWork(worker.base, places, output, gateway, template))


class Executor:
    """Runs tool calls. Thread-safe; holds no provider key and no state of any job but a cache of workspaces."""

    def __init__(self, worker: WorkerRuntime, work: CallWork) -> None:
        self._worker = worker
        self._runtime = worker.base
        self._work = work
        self._usual = UsualCalls(worker)

    def begin(self, rung: Callable[[], Sequence[str]]) -> list[Begun | Literal[False]]:
        """Claim calls for `run`, many at once, as far as they are usual: False for the others, which `run` claims itself.

        `rung` gives the calls, and is called when it is their turn. Raises what the database does.
        """
        return [begun or False for begun in self._usual.begin(rung)]

    def run(self, call_id: str, begun: Begun | Literal[False] | None = None) -> None:
        """Run the call, if it is due and nobody else is at it. Raises `NotFound` for no call's id.

        `begun`: what `begin` said of it; None: nothing.

        `DatabaseUnavailable` means that nothing was recorded.
        """
        do(self.running(call_id, begun))

    def running(self, call_id: str, begun: Begun | Literal[False] | None = None) -> Work[None]:
        """What `run` does, as work for threads that do others' meanwhile."""
        try:
            usual = self._usual.begin(lambda: [call_id])[0] if begun is None else begun
            claimed = self._usual.plain(usual) if usual else self._claim(call_id)
        except (DatabaseUnavailable, NotFound):
            raise
        except Exception as error:  # noqa: BLE001 - written down, whatever it is
            stumbles.record(self._runtime, "calls", call_id, error)
            return
        if claimed is None:
            if self._worker.quarantine is not None:
                self._worker.quarantine.take("calls", call_id)
            return
        job, call = claimed
        with self._worker.leases.hold("calls", call.id, call.attempt) as lease:
            try:
                point(Fault.EXECUTOR_CLAIMED, job.id)
                yield from self._act(job, call, lease)
            except StaleAttempt as error:
                _LOG.info("result dropped: %s", error, extra={"job_id": job.id, "call_id": call.id})

    def _claim(self, call_id: str) -> tuple[Job, Call] | None:
        """The call and its job, claimed; None when there is nothing to run (any more)."""
        with self._runtime.database.transaction() as tx:
            found = self._claim_generally(tx, call_id)
            if found is not None:
                point(Fault.EXECUTOR_CLAIM, found[0].id)
            return found

    def _claim_generally(self, tx: Transaction, call_id: str) -> tuple[Job, Call] | None:
        """Claim the call, or see to what stands in its way."""
        # Everybody locks the job before its calls, so no two transactions wait for each other.
        job = jobs.get(tx, steps.call(tx, call_id).job_id, lock=True)
        row = claims.claim(tx, "calls", call_id, self._worker.presence.key, self._runtime.limits, suspects=self._worker.quarantine is None)
        if row is None:
            return None
        call = call_of(row)
        if job.hold is not None and job.stopping is None:
            steps.settle(tx, call.id, call.attempt, {"status": CallStatus.PENDING.value, "due_at": None, "tries": call.tries - 1})
            flow.go_on(tx, self._runtime, job)
            return None
        if job.stopping is not None:
            self._stop(tx, job, call)
            return None
        if in_doubt(call) and not ledger.resolve(tx, self._runtime, job, call):
            return None
        refused = self._refused(tx, call)
        if refused is not None:
            end_job(tx, job.id, JobStatus.FAILED, reason=refused[0], message=f"{call.tool} ({call.id}) {refused[1]}")
            return None
        data = {"call_id": call.id, "step": call.step, "tool": call.tool, "attempt": call.attempt}
        events.append(tx, job.id, NewEvent(EventType.CALL_STARTED, data))
        return job, call

    def _refused(self, tx: Transaction, call: Call) -> tuple[Reason, str] | None:
        """Why a claimed call must not run, for good."""
        if not approvals.permits(tx, call):  # nothing leads here: should anything, it ends here
            return Reason.NOT_APPROVED, "needs an approval of its arguments and has none."
        if call.tries > self._runtime.limits.attempts:
            return (
                Reason.ATTEMPTS_EXHAUSTED,
                f"was tried {call.tries - 1} times and whoever ran it died or froze each time.",
            )
        return None

    def _act(self, job: Job, call: Call, lease: Lease) -> Work[None]:
        attributes: dict[str, str | int | float | bool] = {
            genai.OPERATION: genai.EXECUTE_TOOL,
            genai.TOOL_NAME: call.tool,
            genai.TOOL_CALL_ID: call.id,
            genai.JOB_ID: job.id,
            genai.STEP: call.step,
            genai.ATTEMPT: call.attempt,
        }
        with tracing.span(
            f"{genai.EXECUTE_TOOL} {call.tool}", parent=call.traceparent, kind=SpanKind.CONSUMER, attributes=attributes
        ) as span:
            assert_no_transaction()
            try:
                done = self._work.do(job, call, lease)
                if not done.result.observation.ok:
                    span.set_status(Status(StatusCode.ERROR, "the command failed"))
                yield from persistently(lambda: self._settle(job, call, lease, done), lease, self._runtime.limits.lease_s)
            except (StaleAttempt, DatabaseUnavailable):
                raise
            except DualtrackError as error:
                span.set_status(Status(StatusCode.ERROR, error.message))
                span.set_attribute(genai.ERROR_TYPE, error.code)
                self._record_failure(job, call, error)
            except Exception as error:  # noqa: BLE001 - recorded and retried
                # A fault of ours must not leave the job hanging: it is retried like any failure of our machinery, then ends the job.
                _LOG.exception("call failed", extra={"job_id": job.id, "call_id": call.id})
                span.set_status(Status(StatusCode.ERROR, type(error).__name__))
                self._record_failure(job, call, InternalFault(f"{type(error).__name__} in the executor; see its log."))

    def _settle(self, job: Job, call: Call, lease: Lease, done: Done) -> Work[None]:
        """Write the outcome down, or, where the job was told to stop meanwhile, that the call was cancelled."""
        told = call.effect is Effect.EXTERNAL and done.ran  # what has happened outside is no less true for a job that stops
        if lease.cancel.is_set() and not lease.lost and not told:
            with self._runtime.database.transaction() as tx:
                now = jobs.get(tx, job.id, lock=True)
                if done.egress:
                    events.append(tx, job.id, *egress_events(call, done.egress))
                self._stop(tx, now, call, done.result.observation.text)
        else:
            yield from self._record(job, call, done)

    def _record(self, job: Job, call: Call, done: Done) -> Work[None]:
        observation = done.result.observation
        preview = observations.preview(observation.text, call.id, self._runtime.limits.observation_chars)
        data: dict[str, Any] = {
            "call_id": call.id,
            "step": call.step,
            "tool": call.tool,
            "ok": observation.ok,
            "observation": preview,
            "truncated": done.observation_key is not None,
            "attempt": call.attempt,
            "wall_s": round(done.wall_s, 3),
            "details": dict(done.result.details),
        }
        changes_workspace = call.effect is Effect.WORKSPACE
        if changes_workspace:
            data["workspace"] = done.workspace
        finished = NewEvent(EventType.CALL_FINISHED, data)
        outcome = Outcome(observation.ok, preview, done.observation_key, data["details"], done.workspace, changes_workspace)
        if not done.artifacts and not done.egress and (yield from self._usual.end(job, call, outcome, finished)):
            return
        with self._runtime.database.transaction() as tx:
            tx.after_commit(lambda: point(Fault.EXECUTOR_RECORDED, job.id))
            now = jobs.get(tx, job.id, lock=True)
            status = CallStatus.SUCCEEDED if observation.ok else CallStatus.FAILED
            values = {
                "status": status.value,
                "ok": observation.ok,
                "preview": preview,
                "observation_key": done.observation_key,
                "details": data["details"],
            }
            if changes_workspace:
                values["workspace"] = done.workspace
            steps.settle(tx, call.id, call.attempt, values)
            new = [*egress_events(call, done.egress), finished]
            if changes_workspace:
                jobs.change(tx, job.id, {"workspace": done.workspace})
            room = self._runtime.limits.artifacts - steps.artifact_count(tx, job.id) if done.artifacts else 0
            for request, entry in done.artifacts[: max(room, 0)]:
                artifact = self._artifact_row(job, call, request, entry)
                steps.add_artifact(tx, artifact)
                shown = {key: artifact[key] for key in ("call_id", "name", "size", "sha256", "content_type")}
                new.append(NewEvent(EventType.ARTIFACT_SAVED, {"artifact_id": artifact["id"], **shown}))
            notices.record(tx, job.id, *new)
            flow.go_on(tx, self._runtime, now)
            point(Fault.EXECUTOR_RECORD, job.id)

    @staticmethod
    def _artifact_row(job: Job, call: Call, request: ArtifactRequest, entry: FileEntry) -> Mapping[str, Any]:
        return {
            "id": new_id("art"),
            "job_id": job.id,
            "tenant_id": job.tenant_id,
            "call_id": call.id,
            "name": request.name,
            "path": request.path,
            "description": request.description,
            "size": entry.size,
            "sha256": entry.sha256,
            "blob_key": entry.blob_key,
            "content_type": mimetypes.guess_type(request.name)[0] or "application/octet-stream",
        }

    def _stop(self, tx: Transaction, job: Job, call: Call, seen: str = "") -> None:
        """The job was told to stop: the claimed call is cancelled, and the job ended if this was the last one at work.

        `seen`: what the command had said until then.
        """
        details = {}
        if may_have_happened(steps.call(tx, call.id)):
            seen, details = TOLD, {"details": DOUBTED}
        preview = observations.preview(storable(seen), call.id, self._runtime.limits.observation_chars)
        steps.settle(tx, call.id, call.attempt, {"status": CallStatus.CANCELLED.value, "preview": preview} | details)
        data = {"call_id": call.id, "step": call.step, "tool": call.tool, "observation": preview}
        events.append(tx, job.id, NewEvent(EventType.CALL_CANCELLED, data | details))
        if job.stopping is not None:
            finish_stop(tx, job.id, job.stopping)

    def _record_failure(self, job: Job, call: Call, error: DualtrackError) -> None:
        """Our machinery failed, which says nothing of the command: try again after a pause; end the job when that can't help any more."""
        failures = call.failures + 1
        _LOG.warning("%s: %s: %s", call.tool, error.code, error, extra={"job_id": job.id, "call_id": call.id, "failures": failures})
        with self._runtime.database.transaction() as tx:
            now = jobs.get(tx, job.id, lock=True)
            if now.stopping is not None:
                self._stop(tx, now, call)
                return
            doubtful = ledger.leaves_doubt(tx, call, error)
            if doubtful and not ledger.resolve(tx, self._runtime, now, call):
                return
            last = gives_up(error, failures, self._runtime.limits)
            pause = backoff(failures, self._runtime.limits)
            due = Later(pause)
            values = {"status": CallStatus.PENDING.value, "due_at": due, "not_before": due, "tries": 0, "failures": failures}
            if not (doubtful and last):
                values["intent_at"] = None
            steps.settle(tx, call.id, call.attempt, values)
            if last:
                end_job(tx, job.id, JobStatus.FAILED, reason=error.code, message=error.message)
                return
            data = {"call_id": call.id, "step": call.step, "tool": call.tool, "code": error.code, "message": error.message}
            events.append(tx, job.id, NewEvent(EventType.CALL_RETRYING, data | {"attempt": call.attempt, "retry_in_s": round(pause, 2)}))
            if now.hold is not None:  # nobody has to wait for the end of the pause
                flow.go_on(tx, self._runtime, now)
