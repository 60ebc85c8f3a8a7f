"""A planner's usual claims and records, many at a time; what is not usual goes the planner's general way."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from dualtrack.db import claims, usual_plans
from dualtrack.db.rows import call_of, job_of, step_of
from dualtrack.domain.errors import DatabaseUnavailable
from dualtrack.domain.events import NewEvent
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.domain.step import Step
from dualtrack.engine import doorbells
from dualtrack.engine.decisions import Outline
from dualtrack.engine.ending import end_event, export_span
from dualtrack.engine.gate import Gate
from dualtrack.engine.history import History
from dualtrack.engine.runtime import WorkerRuntime
from dualtrack.engine.usual_claims import UsualClaims
from dualtrack.faults import Fault, point
from dualtrack.models.port import Decision
from dualtrack.queues.port import Ring
from dualtrack.together import Together
from dualtrack.work import Question, Work

_LOG: Final = logging.getLogger(__name__)
_Asked = tuple[usual_plans.Decided, Sequence[Ring]]
"""What is to be recorded, and the rings that follow."""


class UsualPlans:
    """The usual transactions of one planner process. Thread-safe."""

    def __init__(self, worker: WorkerRuntime, gate: Gate, history: History) -> None:
        self._runtime = worker.base
        self._gate = gate
        self._history = history
        turn = threading.Lock()
        self._claims: Final = UsualClaims(worker, usual_plans.claim, Fault.PLANNER_CLAIM, turn)
        self._records: Final = Together(self._record, shared=(DatabaseUnavailable,), turn=turn, then=self._recorded)
        self._ends: Final = Together(self._record, shared=(DatabaseUnavailable,), turn=turn, then=self._recorded)

    def claim(self, rung: Callable[[], Sequence[str]]) -> list[usual_plans.Claimed | None]:
        """Claim those of the jobs that are usual, each once; None for the others.

        See `UsualClaims.take`.
        """
        return self._claims.take(rung)

    def plain(self, claimed: usual_plans.Claimed) -> tuple[Job, list[Step]] | None:
        """A claimed job of which there is nothing to say but that a decision is due, and the steps that matter.

        None: it is not so, and the job is given back.
        """
        found = None
        try:
            job = job_of(claimed.job)
            last = None if claimed.step is None else step_of(claimed.step, tuple(map(call_of, claimed.calls)))
            history = self._history.with_last(job, last)
            if history is None:  # another planner has advanced it meanwhile
                with self._runtime.database.transaction() as tx:
                    history = self._history.read(tx, job)
            if self._gate.plainly_open(job, history, claimed.job):
                found = job, history
        finally:
            if found is None:
                with self._runtime.database.transaction() as tx:
                    claims.give_back(tx, "jobs", claimed.job.id, claimed.job.attempt)
        return found

    def record(self, job: Job, decision: Decision, thought: str, reflection: str, outline: Outline, told: Sequence[NewEvent]) -> Work[bool]:
        """Write down a decision that has calls for executors, and ring for them, or that ends its job, and nothing else of note.

        False where it is not so, or the job was asked for something.
        """
        answer = outline.answer
        if outline.asks or outline.delegates or (answer is None and (outline.finish is not None or not outline.dispatch)):
            return False
        first = outline.first_wave
        if answer is not None:
            told = [*told, end_event(JobStatus.SUCCEEDED, job.step + 1, job.usage + decision.usage, answer=answer)]
        decided = usual_plans.Decided(
            job, thought, reflection, decision.model, decision.usage, decision.latency_s, outline.plan, outline.rows, first, told, answer
        )
        together = self._records if answer is None else self._ends  # a statement each, so that a batch is written or not
        written = yield Question(together, (decided, doorbells.for_execute(first, job)))
        return written is not None

    def _record(self, asked: Sequence[_Asked]) -> list[usual_plans.Recorded | None]:
        for decided, _ in asked:
            point(Fault.PLANNER_RECORD, decided.job.id)
        with self._runtime.database.statements() as tx:
            written = usual_plans.record(tx, [decided for decided, _ in asked], ring_s=self._runtime.limits.ring_s)
        return [written.get((decided.job.id, decided.job.attempt)) for decided, _ in asked]

    def _recorded(self, asked: Sequence[_Asked], written: Sequence[usual_plans.Recorded | None]) -> None:
        recorded = [(*each, what) for each, what in zip(asked, written, strict=True) if what is not None]
        for decided, _, _ in recorded:
            point(Fault.PLANNER_RECORDED, decided.job.id)
        doorbells.ring(self._runtime, [ring for _, rings, _ in recorded for ring in rings])
        for decided, _, what in recorded:
            if decided.answer is not None:
                job, usage = decided.job, decided.job.usage + decided.usage
                ended = replace(job, status=JobStatus.SUCCEEDED, step=job.step + 1, usage=usage, finished_at=what.finished_at)
                try:
                    export_span(ended)
                except Exception:  # noqa: BLE001 - whatever it is: the job has ended, and others are in this batch
                    _LOG.exception("the span of a job is not exported", extra={"job_id": job.id})
