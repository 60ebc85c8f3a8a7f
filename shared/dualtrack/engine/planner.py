"""One ring of the planner: advance a job by one decision. Claim, act, record."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from opentelemetry.trace import SpanKind

from dualtrack.db import claims, events, jobs, steps
from dualtrack.db.engine import Transaction
from dualtrack.db.prepared import NOW, Later
from dualtrack.db.rows import job_of
from dualtrack.db.usual_plans import Claimed
from dualtrack.domain.errors import (
    ContextTooLong,
    DatabaseUnavailable,
    DualtrackError,
    InternalFault,
    MalformedAction,
    NotFound,
    StaleAttempt,
)
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import JobStatus, Phase
from dualtrack.domain.policies import backoff, gives_up
from dualtrack.domain.reasons import Reason
from dualtrack.domain.step import Step
from dualtrack.domain.text import storable
from dualtrack.domain.usage import Usage
from dualtrack.engine import approvals, children, compaction, doorbells, flow, steering, stumbles
from dualtrack.engine.asking import Asking
from dualtrack.engine.compaction import Compactor
from dualtrack.engine.context import decision_request
from dualtrack.engine.decisions import DecisionReader, Outline, put_off
from dualtrack.engine.ending import end_job, finish_stop, usage_data
from dualtrack.engine.gate import Gate
from dualtrack.engine.history import History
from dualtrack.engine.leases import Lease
from dualtrack.engine.recording import persistently
from dualtrack.engine.runtime import WorkerRuntime
from dualtrack.engine.usual_plans import UsualPlans
from dualtrack.faults import Fault, point
from dualtrack.models.port import Decision, DecisionRequest, ModelGateway
from dualtrack.telemetry import genai, tracing
from dualtrack.work import Work, do

_LOG: Final = logging.getLogger(__name__)
_RAW_CHARS: Final = 2000
Said = Mapping[int, Sequence[str]]
"""What a job's user wrote, by the step that it followed."""


class Planner:
    """Advances jobs. Thread-safe; of jobs it holds nothing but copies of what can't change any more."""

    def __init__(self, worker: WorkerRuntime, gateway: ModelGateway) -> None:
        self._worker = worker
        self._runtime = worker.base
        self._gateway = gateway
        self._reader = DecisionReader(worker.base.registry, worker.base.limits, worker.base.policies)
        self._compactor = Compactor(worker.base, gateway)
        self._gate = Gate(worker.base)
        limits = worker.base.limits
        self._history = History(most_chars=limits.history_chars, last=limits.same_failure)
        self._usual = UsualPlans(worker, self._gate, self._history)

    def begin(self, rung: Callable[[], Sequence[str]]) -> list[Claimed | Literal[False]]:
        """Claim jobs for `advance`, many at once, as far as they are usual: False for the others, which `advance` claims itself.

        `rung` gives the jobs, and is called when it is their turn. Raises what the database does.
        """
        return [claimed or False for claimed in self._usual.claim(rung)]

    def advance(self, job_id: str, begun: Claimed | Literal[False] | None = None) -> None:
        """Take the job one decision further, if it is due and nobody else is at it. `begun`: what `begin` said of it; None: nothing.

        Raises nothing for what the model, the provider, a newer attempt or a fault of ours did: that is written down.
        `DatabaseUnavailable` means that nothing was; the lease runs out and the scheduler rings again. `NotFound`: no job has that id.
        """
        do(self.advancing(job_id, begun))

    def advancing(self, job_id: str, begun: Claimed | Literal[False] | None = None) -> Work[None]:
        """What `advance` does, as work for threads that do others' meanwhile."""
        try:
            claimed = self._usually(job_id, begun) or self._claim(job_id)
        except (DatabaseUnavailable, NotFound):
            raise
        except Exception as error:  # noqa: BLE001 - written down, whatever it is
            stumbles.record(self._runtime, "jobs", job_id, error)
            return
        if claimed is None:
            if self._worker.quarantine is not None:
                self._worker.quarantine.take("jobs", job_id)
            return
        job, history, said = claimed
        attributes: dict[str, str | int] = {genai.JOB_ID: job.id, genai.STEP: job.step + 1, genai.ATTEMPT: job.attempt}
        with (
            tracing.span(f"plan step {job.step + 1}", parent=job.traceparent, kind=SpanKind.CONSUMER, attributes=attributes),
            self._worker.leases.hold("jobs", job.id, job.attempt) as lease,
        ):
            asking = Asking(self._gateway, job.id)
            try:
                point(Fault.PLANNER_CLAIMED, job.id)
                yield from self._decide(job, history, said, asking, lease)
            except StaleAttempt as error:
                _LOG.info("result dropped: %s", error, extra={"job_id": job.id})
                self._drop(job, asking)

    def _usually(self, job_id: str, begun: Claimed | Literal[False] | None) -> tuple[Job, list[Step], Said] | None:
        if not begun:
            self._history.warm(self._runtime.database, job_id)
        claimed = self._usual.claim(lambda: [job_id])[0] if begun is None else begun
        plain = self._usual.plain(claimed) if claimed else None
        return None if plain is None else (*plain, {})

    def _claim(self, job_id: str) -> tuple[Job, list[Step], Said] | None:
        """The job, claimed, the steps that matter now and what its user wrote; None when there is nothing to decide (any more)."""
        with self._runtime.database.transaction() as tx:
            row = claims.claim(
                tx, "jobs", job_id, self._worker.presence.key, self._runtime.limits, suspects=self._worker.quarantine is None
            )
            if row is None:
                return None
            job = job_of(row)
            if job.parent_id is not None:  # should it end here
                tx.after_commit(lambda: children.tell_parent(self._runtime, job.id))
            if job.status is JobStatus.QUEUED:
                jobs.start(tx, job.id)
                events.append(tx, job.id, NewEvent(EventType.JOB_STARTED, {}))
            history = self._history.read(tx, job)
            said = self._history.said(tx, job)
            found = None
            if not self._gate.closed(tx, job, history, row, unanswered=said.unanswered(job.step)):
                found = job, history, steering.take(tx, job, said)
            point(Fault.PLANNER_CLAIM, job.id)
            return found

    def _decide(self, job: Job, history: Sequence[Step], said: Said, asking: Asking, lease: Lease) -> Work[None]:
        try:
            request = self._request(job, history, said)
        except Exception as error:  # noqa: BLE001 - written down, whatever it is
            self._record_failure(job, error, asking.spent)
            return
        try:
            what = self._compactor.due(job, history)
            if what is not None:
                write = self._compactor.compact(job, history, request, what, asking)
                yield from persistently(write, lease, self._runtime.limits.lease_s)
                return
            decision = asking.decide(request)
        except (StaleAttempt, DatabaseUnavailable):
            raise
        except MalformedAction as error:
            self._record_malformed(job, error)
        except ContextTooLong as error:
            yield from self._shorten(job, history, request, error, asking, lease)
        except Exception as error:  # noqa: BLE001 - written down, whatever it is
            self._record_failure(job, error, asking.spent)
        else:
            point(Fault.PLANNER_DECIDED, job.id)
            try:
                yield from persistently(lambda: self._record(job, decision), lease, self._runtime.limits.lease_s)
            except (StaleAttempt, DatabaseUnavailable):
                raise
            except Exception as error:  # noqa: BLE001 - the decision can't be written, but what it cost can
                self._record_failure(job, error, asking.spent)

    def _request(self, job: Job, history: Sequence[Step], said: Said) -> DecisionRequest:
        agent = job.spec.agent
        egress = self._runtime.egress.policy(agent.network, agent.secrets, job.tenant_id)
        return decision_request(job, history, self._runtime.registry, said, egress, self._history.past)

    def _shorten(
        self, job: Job, history: Sequence[Step], request: DecisionRequest, error: ContextTooLong, asking: Asking, lease: Lease
    ) -> Work[None]:
        """The provider takes no context that long: compact it at once; give up when nothing is left to shorten."""
        what = compaction.refused(job)
        if what is None:
            self._record_failure(job, error, asking.spent)
            return
        try:
            write = self._compactor.compact(job, history, request, what, asking)
            yield from persistently(write, lease, self._runtime.limits.lease_s)
        except (StaleAttempt, DatabaseUnavailable):
            raise
        except Exception as failure:  # noqa: BLE001 - written down, whatever it is
            self._record_failure(job, failure, asking.spent)

    def _drop(self, job: Job, asking: Asking) -> None:
        """The attempt was overtaken: what it says is dropped, what it cost is not.

        Unless it was written after all: a commit whose answer was lost refuses its own second try.
        """
        if asking.spent == Usage():
            return
        with self._runtime.database.transaction() as tx:
            jobs.get(tx, job.id, lock=True)
            if events.paid(tx, job.id, after=job.last_seq, attempt=job.attempt):
                return
            if jobs.charge(tx, job.id, asking.spent, key_id=job.key_id):
                events.append(tx, job.id, _dropped(job, asking.spent))

    def _record(self, job: Job, decision: Decision) -> Work[None]:
        number = job.step + 1
        thought, reflection = storable(decision.thought), storable(decision.reflection)
        outline = self._reader.outline(job, number, decision.calls, tracing.traceparent())
        told = self._told(job, decision, thought, reflection, outline)
        if (yield from self._usual.record(job, decision, thought, reflection, outline, told)):
            return
        with self._ending(job) as tx:
            values: dict[str, Any] = {
                "step": number,
                "tries": 0,
                "failures": 0,
                "malformed": 0,
                "rings": 0,
                "context_tokens": decision.usage.total_tokens,
                "due_at": Later(self._runtime.limits.ring_s),
            }
            if outline.plan is not None:
                values["plan"] = outline.plan
            if outline.dispatch:
                values |= {"phase": Phase.EXECUTE.value, "due_at": None}
            tx.after_commit(lambda: point(Fault.PLANNER_RECORDED, job.id))
            wanted = jobs.release(tx, job.id, job.attempt, values, usage=decision.usage, key_id=job.key_id)
            if outline.finish is not None and wanted.messages > job.messages:
                outline = put_off(outline)
                jobs.change(tx, job.id, {"phase": Phase.PLAN.value, "due_at": Later(self._runtime.limits.ring_s)})
            steps.add(
                tx,
                job_id=job.id,
                number=number,
                thought=thought,
                reflection=reflection,
                note="",
                model=decision.model,
                usage=decision.usage,
                latency_s=decision.latency_s,
            )
            at_once = wanted.hold is None and not outline.asks and not outline.delegates
            first = outline.first_wave if at_once else []
            steps.add_calls(tx, [self._timed(row, first) for row in outline.rows])
            events.append(tx, job.id, *self._told(job, decision, thought, reflection, outline))
            for ask in outline.asks:
                call = steps.call(tx, ask.call_id)
                approvals.request(tx, self._runtime, job, call, ask.kind, message=ask.message, expires_s=ask.expires_s)
            self._hand_on(tx, job, outline, wanted)
            point(Fault.PLANNER_RECORD, job.id)

    @contextlib.contextmanager
    def _ending(self, job: Job) -> Iterator[Transaction]:
        """A transaction in which the job may end, of which its parent is then told."""
        with self._runtime.database.transaction() as tx:
            yield tx
        if job.parent_id is not None:
            children.tell_parent(self._runtime, job.id)

    @staticmethod
    def _told(job: Job, decision: Decision, thought: str, reflection: str, outline: Outline) -> list[NewEvent]:
        """The events of a decision: itself, what it changed, and the calls that were settled with it."""
        number = job.step + 1
        data = {
            "step": number,
            "model": decision.model,
            "thought": thought,
            "reflection": reflection,
            "calls": [{"id": row["id"], "tool": row["tool"], "arguments": row["arguments"]} for row in outline.rows],
            "usage": usage_data(decision.usage),
            "latency_s": round(decision.latency_s, 3),
            "attempt": job.attempt,
        }
        settled = [
            NewEvent(
                EventType.CALL_FINISHED,
                {"call_id": row["id"], "step": number, "tool": row["tool"], "ok": row["ok"], "observation": row["preview"]},
            )
            for row in outline.rows
            if "ok" in row
        ]
        return [NewEvent(EventType.STEP_DECIDED, data), *outline.events, *settled]

    def _timed(self, row: dict[str, Any], due: Sequence[str]) -> dict[str, Any]:
        """A call's row with its times: those settled at once have ended, those of the first wave are due."""
        if "ok" in row:
            return row | {"started_at": NOW, "finished_at": NOW}
        return row | {"due_at": Later(self._runtime.limits.ring_s) if row["id"] in due else None}

    def _hand_on(self, tx: Transaction, job: Job, outline: Outline, wanted: jobs.Asked) -> None:
        """What happens next: stop, end, wait, execute or plan again."""
        if wanted.stopping is not None:
            finish_stop(tx, job.id, wanted.stopping)
        elif outline.finish is not None and not outline.finish.success:
            end_job(
                tx,
                job.id,
                JobStatus.FAILED,
                reason=Reason.GAVE_UP,
                message="The agent gave up; its answer says why.",
                answer=outline.finish.answer,
            )
        elif outline.answer is not None:
            end_job(tx, job.id, JobStatus.SUCCEEDED, answer=outline.answer)
        elif wanted.hold is not None or outline.asks or outline.delegates:
            flow.go_on(tx, self._runtime, jobs.get(tx, job.id))
        elif outline.dispatch:
            doorbells.execute_after_commit(tx, self._runtime, outline.first_wave, job)
        else:
            doorbells.plan_after_commit(tx, self._runtime, job)

    def _record_malformed(self, job: Job, error: MalformedAction) -> None:
        number = job.step + 1
        raw = storable(error.raw[:_RAW_CHARS])
        data = {
            "step": number,
            "model": error.model,
            "error": error.message,
            "raw": raw,
            "usage": usage_data(error.usage),
            "attempt": job.attempt,
        }
        with self._runtime.database.transaction() as tx:
            values = {
                "step": number,
                "tries": 0,
                "failures": 0,
                "malformed": job.malformed + 1,
                "rings": 0,
                "context_tokens": error.usage.total_tokens,
                "due_at": Later(self._runtime.limits.ring_s),
            }
            jobs.release(tx, job.id, job.attempt, values, usage=error.usage, key_id=job.key_id)
            steps.add(
                tx,
                job_id=job.id,
                number=number,
                thought=raw,
                reflection="",
                note=error.message,
                model=error.model,
                usage=error.usage,
                latency_s=0.0,
            )
            events.append(tx, job.id, NewEvent(EventType.STEP_MALFORMED, data))
            doorbells.plan_after_commit(tx, self._runtime, job)

    def _record_failure(self, job: Job, failure: Exception, usage: Usage) -> None:
        """The provider or our machinery failed: try again after a pause, or end the job when that can't help or was done often enough."""
        error = failure if isinstance(failure, DualtrackError) else InternalFault(f"{type(failure).__name__} in the planner; see its log.")
        log = _LOG.warning if error is failure else _LOG.error
        log(
            "step %d: %s: %s",
            job.step + 1,
            error.code,
            error,
            extra={"job_id": job.id, "failures": job.failures + 1},
            exc_info=error is not failure and failure,
        )
        with self._ending(job) as tx:
            failures = job.failures + 1
            if gives_up(error, failures, self._runtime.limits):
                jobs.release(tx, job.id, job.attempt, {}, usage=usage, key_id=job.key_id)
                if usage != Usage():
                    events.append(tx, job.id, _dropped(job, usage))
                end_job(tx, job.id, JobStatus.FAILED, reason=error.code, message=error.message)
                return
            pause = backoff(failures, self._runtime.limits)
            data: dict[str, Any] = {
                "step": job.step + 1,
                "code": error.code,
                "message": error.message,
                "attempt": job.attempt,
                "retry_in_s": round(pause, 2),
            }
            values = {"due_at": Later(pause), "not_before": Later(pause), "tries": 0, "failures": failures}
            wanted = jobs.release(tx, job.id, job.attempt, values, usage=usage, key_id=job.key_id)
            if usage != Usage():
                data["usage"] = usage_data(usage)
            events.append(tx, job.id, NewEvent(EventType.STEP_RETRYING, data))
            if wanted.hold is not None:  # nobody has to wait for the end of the pause
                flow.go_on(tx, self._runtime, jobs.get(tx, job.id))


def _dropped(job: Job, usage: Usage) -> NewEvent:
    return NewEvent(EventType.STEP_DROPPED, {"step": job.step + 1, "attempt": job.attempt, "usage": usage_data(usage)})
