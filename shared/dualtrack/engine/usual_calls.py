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
from dualtrack.faults import Fault, point
from dualtrack.queues.port import Ring
from dualtrack.together import Together, make_room


class UsualCalls:
    """The usual transactions of one executor process. Thread-safe."""

    def __init__(self, worker: WorkerRuntime) -> None:
        self._worker = worker
        self._runtime = worker.base
        self._turn = threading.Lock()
        self._company = False
        self._ends: Final = Together(self._end, shared=(DatabaseUnavailable,), turn=self._turn, then=self._ended)

    def begin(self, rung: Callable[[], Sequence[str]]) -> list[usual_calls.Begun | None]:
        """Claim those of the calls that are usual, each once; None for the others.

        `rung` gives the calls. It is called when it is their turn, so that those whose ring has come meanwhile are among them.
        """
        with self._turn:
            make_room(self._company)
            call_ids = rung()
            self._company = len(call_ids) > 1
            for call_id in call_ids:
                point(Fault.EXECUTOR_CLAIM, call_id)
            with self._runtime.database.statements() as tx:
                found = usual_calls.begin(tx, list(dict.fromkeys(call_ids)), self._worker.presence.key, self._runtime.limits)
        return [found.pop(call_id, None) for call_id in call_ids]  # the second of two rings for one call finds nothing

    def plain(self, begun: usual_calls.Begun) -> tuple[Job, Call]:
        """A claimed call that only has to be run, and its job; given back where they can't be read."""
        try:
            return job_of(begun.job), call_of(begun.call)
        except BaseException:
            with self._runtime.database.transaction() as tx:
                claims.give_back(tx, "calls", begun.call.id, begun.call.attempt)
            raise

    def end(self, job: Job, call: Call, outcome: usual_calls.Outcome, finished: NewEvent) -> bool:
        """Write down the outcome of the last open call of a step, and ring for the planner.

        False where it is not the last one, or the job was asked for something.
        """
        return self._ends.do((usual_calls.Ended(call, outcome, finished), doorbells.for_plan(job)))

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
