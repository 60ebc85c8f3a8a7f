"""The steps of the jobs that a planner advances, read once: what a step costs does not grow with the steps before it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from dualtrack.db import jobs, steps
from dualtrack.db.engine import Database, Transaction
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import CALL_TERMINAL
from dualtrack.domain.step import Step
from dualtrack.engine.context import past_step
from dualtrack.models.port import PastStep

_OVERHEAD_CHARS: Final = 1000
"""What a step, and a job, weighs besides its texts."""


@dataclass(slots=True)
class _Kept:
    """Settled steps of a job, without a gap."""

    steps: list[Step] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    views: dict[int, PastStep] = field(default_factory=dict)
    """As a model is shown them, by number, once that was asked for."""

    @property
    def chars(self) -> int:
        return _OVERHEAD_CHARS + sum(self.weights)


class History:
    """Settled steps by job, those of the job least recently read forgotten first. Thread-safe.

    A step is settled once all its calls have ended and a later step exists: its rows never change again, so a copy is as good as they are
    whoever has advanced the job meanwhile. Missing or losing any of it costs a read and nothing else.

    Args:
        most_chars: how much is kept, by the length of texts.
        last: how many of a job's last steps are always given.
    """

    def __init__(self, *, most_chars: int, last: int) -> None:
        self._most_chars = most_chars
        self._last = last
        self._jobs: OrderedDict[str, _Kept] = OrderedDict()
        self._chars = 0
        self._lock = threading.Lock()

    @property
    def chars(self) -> int:
        """How much is kept."""
        return self._chars

    def warm(self, database: Database, job_id: str) -> None:
        """Read what is settled of a job that nothing is known of yet: outside the claim, so that its row is not locked for so long."""
        with self._lock:
            if job_id in self._jobs:
                return
        with database.transaction() as tx:
            progress = jobs.progress(tx, job_id)
            if progress is not None:
                floor = self._floor(progress.step, progress.summarised_through)
                self._keep(job_id, floor, steps.page(tx, job_id, after=floor) if progress.step > floor else [], progress.step)

    def read(self, tx: Transaction, job: Job) -> list[Step]:
        """The steps that no summary stands for, and at least the last few, in order; what is not kept comes from the database."""
        floor = self._floor(job.step, job.summarised_through)
        with self._lock:
            known = [step for step in self._jobs.get(job.id, _Kept()).steps if step.number > floor]
        if known and known[0].number > floor + 1:
            known = []
        after = known[-1].number if known else floor
        fresh = steps.page(tx, job.id, after=after) if job.step > after else []
        self._keep(job.id, floor, fresh, job.step)
        return known + fresh

    def with_last(self, job: Job, last: Step | None) -> list[Step] | None:
        """The same as `read` for a job that nobody else works on, with its last step at hand.

        None where more than that is missing, or it was read before its calls had ended.
        """
        floor = self._floor(job.step, job.summarised_through)
        with self._lock:
            known = [step for step in self._jobs.get(job.id, _Kept()).steps if step.number > floor]
        if last is not None and (known[-1].number if known else floor) < job.step:
            if any(call.status not in CALL_TERMINAL for call in last.calls):
                return None
            self._keep(job.id, floor, [last], job.step + 1)
            known.append(last)
        # What is kept has no gaps.
        return known if len(known) == max(0, job.step - floor) and (not known or known[0].number == floor + 1) else None

    def past(self, step: Step) -> PastStep:
        """A step as a model is shown it; of those kept it is found out once."""
        kept = self._jobs.get(step.job_id)
        view = kept.views.get(step.number) if kept is not None else None
        if view is None:
            view = past_step(step)
            with self._lock:
                if kept is not None and kept.steps and kept.steps[0].number <= step.number <= kept.steps[-1].number:
                    kept.views[step.number] = view
        return view

    def _floor(self, step: int, summarised_through: int) -> int:
        return max(0, min(summarised_through, step - self._last))

    def _keep(self, job_id: str, floor: int, fresh: list[Step], step: int) -> None:
        """Add what is settled of `fresh` to what is kept, and drop what lies at or below `floor`."""
        with self._lock:
            kept = self._jobs.pop(job_id, None)
            self._chars -= kept.chars if kept is not None else 0
            kept = kept or _Kept()
            below = sum(one.number <= floor for one in kept.steps)
            for one in kept.steps[:below]:
                kept.views.pop(one.number, None)
            del kept.steps[:below], kept.weights[:below]
            if not kept.steps or kept.steps[0].number > floor + 1:
                kept = _Kept()
            expected = kept.steps[-1].number + 1 if kept.steps else floor + 1
            for one in fresh:
                if one.number < expected:
                    continue
                if one.number >= step or one.number > expected or any(call.status not in CALL_TERMINAL for call in one.calls):
                    break
                kept.steps.append(one)
                kept.weights.append(_weight(one))
                expected += 1
            self._jobs[job_id] = kept
            self._chars += kept.chars
            while self._chars > self._most_chars and self._jobs:
                self._chars -= self._jobs.popitem(last=False)[1].chars


def _weight(step: Step) -> int:
    texts = len(step.thought) + len(step.reflection) + len(step.note)
    return _OVERHEAD_CHARS + texts + sum(len(call.preview) + len(str(call.arguments)) + len(str(call.details)) for call in step.calls)
