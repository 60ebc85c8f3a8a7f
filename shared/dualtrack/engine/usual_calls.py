"""An executor's usual claims and records, those of many threads together; what is not usual goes the executor's general way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dualtrack.db import claims, usual_calls
from dualtrack.db.rows import call_of, job_of
from dualtrack.domain.errors import DatabaseUnavailable
from dualtrack.domain.events import NewEvent
from dualtrack.domain.job import Job
from dualtrack.domain.step import Call
from dualtrack.engine import doorbells
from dualtrack.engine.runtime import WorkerRuntime
from dualtrack.faults import Fault, point
from dualtrack.together import Together


class UsualCalls:
    """The usual transactions of one executor process. Thread-safe."""

    def __init__(self, worker: WorkerRuntime) -> None:
        self._worker = worker
        self._runtime = worker.base
        self._begins: Final = Together(self._begin_together, shared=(DatabaseUnavailable,))
        self._ends: Final = Together(self._end_together, shared=(DatabaseUnavailable,))

    def begin(self, call_id: str) -> tuple[Job, Call] | None:
        """Claim a call that only has to be run; its job and itself. None: it is not so."""
        begun = self._begins.do(call_id)
        if begun is None:
            return None
        try:
            return job_of(begun.job), call_of(begun.call)
        except BaseException:
            with self._runtime.database.transaction() as tx:
                claims.give_back(tx, "calls", call_id, begun.call.attempt)
            raise

    def _begin_together(self, call_ids: Sequence[str]) -> list[usual_calls.Begun | None]:
        for call_id in call_ids:
            point(Fault.EXECUTOR_CLAIM, call_id)
        with self._runtime.database.statements() as tx:
            begun = usual_calls.begin(tx, list(dict.fromkeys(call_ids)), self._worker.presence.key, self._runtime.limits)
        return [begun.pop(call_id, None) for call_id in call_ids]  # the second of two rings for one call finds nothing

    def end(self, job: Job, call: Call, outcome: usual_calls.Outcome, finished: NewEvent) -> bool:
        """Write down the outcome of the last open call of a step, and ring for the planner.

        False where it is not the last one, or the job was asked for something.
        """
        if not self._ends.do(usual_calls.Ended(call, outcome, finished)):
            return False
        point(Fault.EXECUTOR_RECORDED, job.id)
        doorbells.plan(self._runtime, job)
        return True

    def _end_together(self, ended: Sequence[usual_calls.Ended]) -> list[bool]:
        for each in ended:
            point(Fault.EXECUTOR_RECORD, each.call.job_id)
        with self._runtime.database.statements() as tx:
            written = usual_calls.finish(tx, ended, ring_s=self._runtime.limits.ring_s)
        return [(each.call.id, each.call.attempt) in written for each in ended]
