"""The steps of the jobs that a planner advances and what was written to them, read once: what a step costs does not grow with them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from dualtrack.db import jobs, messages, steps
from dualtrack.db.engine import Database, Transaction
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import CALL_TERMINAL
from dualtrack.domain.message import NOTHING_SAID, Conversation, Message, conversation
from dualtrack.domain.step import Step
from dualtrack.engine.context import past_step
from dualtrack.models.port import PastStep

_OVERHEAD_CHARS: Final = 1000
"""What a step, and a job, weighs besides its texts."""
_MESSAGE_CHARS: Final = 100
"""What a message weighs besides its text."""


@dataclass(slots=True)
class _Kept:
    """Settled steps of a job, without a gap, and the messages that have their place."""

    steps: list[Step] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    views: dict[int, PastStep] = field(default_factory=dict)
    """As a model is shown them, by number, once that was asked for."""
    taken: Conversation = NOTHING_SAID
    taken_count: int = 0
    taken_chars: int = 0

    @property
    def chars(self) -> int:
        return _OVERHEAD_CHARS + sum(self.weights) + self.taken_chars

    def forget(self, count: int) -> None:
        """Drop that many of the oldest steps."""
        for one in self.steps[:count]:
            self.views.pop(one.number, None)
        del self.steps[:count], self.weights[:count]

    def take(self, fresh: Sequence[Message]) -> None:
        """Add what is taken of messages that follow those kept."""
        added = [message for message in fresh if message.after_step is not None and message.number > self.taken_count]
        if added and added[0].number == self.taken_count + 1:
            self.taken = conversation(self.taken, added)
            self.taken_count = added[-1].number
            self.taken_chars += sum(len(message.content) + _MESSAGE_CHARS for message in added)


class History:
    """Settled steps and messages by job, those of the job least recently read forgotten first. Thread-safe.

    A step is settled once all its calls have ended and a later step exists, a message once it is taken up: their rows never change again,
    so a copy is as good as they are whoever has advanced the job meanwhile. Missing or losing any of it costs a read and nothing else.

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
                if progress.messages:
                    self._take(job_id, messages.page(tx, job_id))
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

    def said(self, tx: Transaction, job: Job) -> Conversation:
        """What was written to the job; what is not kept comes from the database."""
        with self._lock:
            kept = self._jobs.get(job.id)
            known, count = (NOTHING_SAID, 0) if kept is None else (kept.taken, kept.taken_count)
        if job.messages == count:
            return known
        fresh = messages.page(tx, job.id, after=count)
        self._take(job.id, fresh)
        return conversation(known, fresh)

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

    def _take(self, job_id: str, fresh: Sequence[Message]) -> None:
        """Keep what is taken of messages."""
        with self._changing(job_id) as kept:
            kept.take(fresh)

    @contextmanager
    def _changing(self, job_id: str) -> Iterator[_Kept]:
        """What is kept of a job, which was read just now; then what there is no room for is forgotten."""
        with self._lock:
            kept = self._jobs.pop(job_id, None)
            self._chars -= kept.chars if kept is not None else 0
            kept = self._jobs[job_id] = kept or _Kept()
            yield kept
            self._chars += kept.chars
            while self._chars > self._most_chars and self._jobs:
                self._chars -= self._jobs.popitem(last=False)[1].chars

    def _floor(self, step: int, summarised_through: int) -> int:
        return max(0, min(summarised_through, step - self._last))

    def _keep(self, job_id: str, floor: int, fresh: list[Step], step: int) -> None:
        """Add what is settled of `fresh` to what is kept, and drop what lies at or below `floor`."""
        with self._changing(job_id) as kept:
            below = sum(one.number <= floor for one in kept.steps)
            if kept.steps[below:] and kept.steps[below].number > floor + 1:
                below = len(kept.steps)
            kept.forget(below)
            expected = kept.steps[-1].number + 1 if kept.steps else floor + 1
            for one in fresh:
                if one.number < expected:
                    continue
                if one.number >= step or one.number > expected or any(call.status not in CALL_TERMINAL for call in one.calls):
                    break
                kept.steps.append(one)
                kept.weights.append(_weight(one))
                expected += 1


def _weight(step: Step) -> int:
    texts = len(step.thought) + len(step.reflection) + len(step.note)
    return _OVERHEAD_CHARS + texts + sum(len(call.preview) + len(str(call.arguments)) + len(str(call.details)) for call in step.calls)
