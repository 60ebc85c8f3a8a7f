"""Compaction: when the context gets too long, a summary takes the place of all but the last steps.

The job's own model writes it, and the platform adds from its records what must not depend on a model's diligence. Where the model can't (it
refuses, or even that is too long for it), the records alone stand in, of a bounded length: so compaction always ends, with less context.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from sqlalchemy import func

from dualtrack.db import events, jobs
from dualtrack.domain.errors import ContextTooLong, DualtrackError
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.job import Job
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.step import Step
from dualtrack.domain.text import storable
from dualtrack.domain.usage import Usage
from dualtrack.engine import doorbells
from dualtrack.engine.asking import Asking
from dualtrack.engine.context import summary_context
from dualtrack.engine.digests import composed
from dualtrack.engine.ending import usage_data
from dualtrack.engine.runtime import Runtime
from dualtrack.models.port import DecisionRequest, ModelGateway, SummaryRequest
from dualtrack.work import Work, at_once

_LOG: Final = logging.getLogger(__name__)
KEEP_STEPS: Final = 3
"""The last steps are shown in full beside the summary."""
WORTH_STEPS: Final = 4
"""Fewer are not worth a summary of their own, unless the provider takes no more."""
WINDOW_SHARE: Final = 0.7
"""Of a model's window: what is left is for the observations to come, and for the answer."""
LEAST_CHARS: Final = 500
"""A summary is not cut any shorter."""
_CHARS_PER_TOKEN: Final = 4


class Way(Enum):
    """Who writes a summary, and from what."""

    FULL = auto()
    """The model, from the context as it was shown (which its provider has in its cache), or with short observations if that is too long."""
    SHORT = auto()
    """The model, with short observations."""
    RECORDS = auto()
    """The platform."""


class Cut(NamedTuple):
    """What is to be summarised."""

    through: int
    """The last step of it."""
    way: Way


class Room(NamedTuple):
    """How much a job's context may hold."""

    context_tokens: int
    summary_chars: int


def room(limits: PlatformLimits, window: int | None) -> Room:
    """The room before a model with a window of that many tokens; None: not known."""
    tokens = limits.context_tokens if window is None else min(limits.context_tokens, int(window * WINDOW_SHARE))
    return Room(tokens, min(limits.summary_chars, max(LEAST_CHARS, tokens)))  # at most about a quarter of the context


def due(job: Job, history: Sequence[Step], room: Room, limits: PlatformLimits) -> Cut | None:
    """What to summarise before the next decision; None while there is room.

    Counted is what the provider counted last, and an estimate of what was observed since.
    """
    through = job.step - KEEP_STEPS
    if through - job.summarised_through < WORTH_STEPS:
        return None
    observed = sum(len(call.preview) for call in history[-1].calls) // _CHARS_PER_TOKEN if history else 0
    too_long = job.context_tokens > 0 and job.context_tokens + observed > room.context_tokens
    return Cut(through, Way.FULL) if too_long or job.step - job.summarised_through > limits.context_steps else None


def refused(job: Job) -> Cut | None:
    """What to summarise when the provider has called the context too long; None when nothing is left that could be shortened."""
    if job.step - KEEP_STEPS > job.summarised_through:
        return Cut(job.step - KEEP_STEPS, Way.SHORT)
    if job.step > job.summarised_through or len(job.summary) > LEAST_CHARS:
        return Cut(job.step, Way.RECORDS)
    return None


class Compactor:
    """Replaces the older part of a claimed job's context. Thread-safe; holds no state of any job."""

    def __init__(self, runtime: Runtime, gateway: ModelGateway) -> None:
        self._runtime = runtime
        self._gateway = gateway

    def due(self, job: Job, history: Sequence[Step]) -> Cut | None:
        """What to summarise before the next decision; None while there is room."""
        return due(job, history, self._room(job), self._runtime.limits)

    def compact(self, job: Job, history: Sequence[Step], request: DecisionRequest, what: Cut, asking: Asking) -> Callable[[], Work[None]]:
        """Summarise; what writes that down under the claim, in one transaction, and gives the claim back for the next decision.

        `request` is that of the decision that now has to wait.

        Raises:
            ModelError: an outage of the provider.
        """
        most = self._room(job).summary_chars
        written, model = self._written(history, request, what, most, asking)
        replaced = summary_context(request, history, what.through, short=True)
        if not replaced.steps:  # nothing is left but the summary itself
            most = max(LEAST_CHARS, len(job.summary) // 2)
        summary = composed(written, replaced, job.plan, most)
        return lambda: at_once(lambda: self._record(job, summary, model, what.through, asking.spent))

    def _room(self, job: Job) -> Room:
        model = job.spec.agent.model
        window = next((info.context_tokens for info in self._gateway.models() if info.id == model), None)
        return room(self._runtime.limits, window)

    @staticmethod
    def _written(history: Sequence[Step], request: DecisionRequest, what: Cut, most: int, asking: Asking) -> tuple[str, str]:
        """A summary by the job's model, and who that was; both empty where it writes none."""
        tries = {Way.FULL: (False, True), Way.SHORT: (True,), Way.RECORDS: ()}[what.way]
        for short in tries:
            try:
                written = asking.summarise(SummaryRequest(summary_context(request, history, what.through, short=short), most))
            except ContextTooLong:
                continue
            except Exception as error:
                if isinstance(error, DualtrackError) and error.outage:
                    raise
                _LOG.warning("the platform summarises, for the model did not: %s: %s", type(error).__name__, error)
                break
            return storable(written.text), written.model
        return "", ""

    def _record(self, job: Job, summary: str, model: str, through: int, usage: Usage) -> None:
        data = {"through_step": through, "summary": summary, "model": model, "usage": usage_data(usage), "attempt": job.attempt}
        values: dict[str, Any] = {
            "compacted_through": through,
            "summary": summary,
            "context_tokens": 0,
            "tries": 0,
            "failures": 0,
            "rings": 0,
            "due_at": func.now() + timedelta(seconds=self._runtime.limits.ring_s),
        }
        with self._runtime.database.transaction() as tx:
            jobs.release(tx, job.id, job.attempt, values, usage=usage, key_id=job.key_id)
            events.append(tx, job.id, NewEvent(EventType.CONTEXT_COMPACTED, data))
            doorbells.plan_after_commit(tx, self._runtime, job)
