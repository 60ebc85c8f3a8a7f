"""An executor's usual claims and records, many at a time; what is not usual goes the executor's general way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from dualtrack.db import claims, usual_calls
from dualtrack.db.rows import call_of, job_of
from dualtrack.domain.errors import DatabaseUnavailable
from dualtrack.domain.events import NewEvent
from dualtrack.domain.job import Job
from dualtrack.domain.step import Call
from dualtrack.engine import doorbells
from dualtrack.engine.runtime import WorkerRuntime
from dualtrack.engine.usual_claims import UsualClaims
from dualtrack.faults import Fault, point
from dualtrack.queues.port import Ring
from dualtrack.together import Together
from dualtrack.work import Question, Work


class UsualCalls:
    """The usual transactions of one executor process. Thread-safe."""

    def __init__(self, worker: WorkerRuntime) -> None:
        self._runtime = worker.base
        turn = threading.Lock()
        self._claims: Final = UsualClaims(worker, usual_calls.begin, Fault.EXECUTOR_CLAIM, turn)
        self._ends: Final = Together(self._end, shared=(DatabaseUnavailable,), turn=turn, then=self._ended)

    def begin(self, rung: Callable[[], Sequence[str]]) -> list[usual_calls.Begun | None]:
        """Claim those of the calls that are usual, each once; None for the others.

        See `UsualClaims.take`.
        """
        return self._claims.take(rung)

    def plain(self, begun: usual_calls.Begun) -> tuple[Job, Call]:
        """A claimed call that only has to be run, and its job; given back where they can't be read."""
        try:
            return job_of(begun.job), call_of(begun.call)
        except BaseException:
            with self._runtime.database.transaction() as tx:
                claims.give_back(tx, "calls", begun.call.id, begun.call.attempt)
            raise

    def end(self, job: Job, call: Call, outcome: usual_calls.Outcome, finished: NewEvent) -> Work[bool]:
        """Write down the outcome of the last open call of a step, and ring for the planner.

        False where it is not the last one, or the job was asked for something.
        """
        written: bool = yield Question(self._ends, (usual_calls.Ended(call, outcome, finished), doorbells.for_plan(job)))
        return written

    def _end(self, asked: Sequence[tuple[usual_calls.Ended, Ring]]) -> list[bool]:
        for ended, _ in asked:
            point(Fault.EXECUTOR_RECORD, ended.call.job_id)
        with self._runtime.database.statements() as tx:
            written = usual_calls.finish(tx, [ended for ended, _ in asked], ring_s=self._runtime.limits.ring_s)
        return [(ended.call.id, ended.call.attempt) in written for ended, _ in asked]

    def _ended(self, asked: Sequence[tuple[usual_calls.Ended, Ring]], written: Sequence[bool]) -> None:
        recorded = [each for each, is_written in zip(asked, written, strict=True) if is_written]
        for ended, _ in recorded:
            point(Fault.EXECUTOR_RECORDED, ended.call.job_id)
        doorbells.ring(self._runtime, [ring for _, ring in recorded])
