"""A planner's usual claims and records, those of many threads together; what is not usual goes the planner's general way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dualtrack.db import claims, usual_plans
from dualtrack.db.rows import call_of, job_of, step_of
from dualtrack.domain.errors import DatabaseUnavailable
from dualtrack.domain.events import NewEvent
from dualtrack.domain.job import Job
from dualtrack.domain.step import Step
from dualtrack.engine import doorbells
from dualtrack.engine.decisions import Outline
from dualtrack.engine.gate import Gate
from dualtrack.engine.history import History
from dualtrack.engine.runtime import WorkerRuntime
from dualtrack.faults import Fault, point
from dualtrack.models.port import Decision
from dualtrack.together import Together


class UsualPlans:
    """The usual transactions of one planner process. Thread-safe."""

    def __init__(self, worker: WorkerRuntime, gate: Gate, history: History) -> None:
        self._worker = worker
        self._runtime = worker.base
        self._gate = gate
        self._history = history
        self._claims: Final = Together(self._claim_together, shared=(DatabaseUnavailable,))
        self._records: Final = Together(self._record_together, shared=(DatabaseUnavailable,))

    def claim(self, job_id: str) -> tuple[Job, list[Step]] | None:
        """Claim a job of which there is nothing to say but that a decision is due; itself and the steps that matter. None: it is not so."""
        found = self._claims.do(job_id)
        if found is None:
            return None
        plain = None
        try:
            job = job_of(found.job)
            history = self._history.with_last(job, None if found.step is None else step_of(found.step, tuple(map(call_of, found.calls))))
            if history is not None and self._gate.plainly_open(job, history, found.job):
                plain = job, history
        finally:
            if plain is None:
                with self._runtime.database.transaction() as tx:
                    claims.give_back(tx, "jobs", job_id, found.job.attempt)
        return plain

    def _claim_together(self, job_ids: Sequence[str]) -> list[usual_plans.Claimed | None]:
        for job_id in job_ids:
            point(Fault.PLANNER_CLAIM, job_id)
        with self._runtime.database.statements() as tx:
            found = usual_plans.claim(tx, list(dict.fromkeys(job_ids)), self._worker.presence.key, self._runtime.limits)
        return [found.pop(job_id, None) for job_id in job_ids]  # the second of two rings for one job finds nothing

    def record(self, job: Job, decision: Decision, thought: str, reflection: str, outline: Outline, told: Sequence[NewEvent]) -> bool:
        """Write down a decision that has calls for executors and nothing else of note, and ring for them.

        False where it is not so, or the job was asked for something.
        """
        if not outline.dispatch or outline.finish is not None or outline.asks or outline.delegates:
            return False
        first = outline.first_wave
        decided = usual_plans.Decided(
            job, thought, reflection, decision.model, decision.usage, decision.latency_s, outline.plan, outline.rows, first, told
        )
        if not self._records.do(decided):
            return False
        point(Fault.PLANNER_RECORDED, job.id)
        doorbells.execute(self._runtime, first, job)
        return True

    def _record_together(self, decided: Sequence[usual_plans.Decided]) -> list[bool]:
        for each in decided:
            point(Fault.PLANNER_RECORD, each.job.id)
        with self._runtime.database.statements() as tx:
            written = usual_plans.record(tx, decided, ring_s=self._runtime.limits.ring_s)
        return [(each.job.id, each.job.attempt) in written for each in decided]
