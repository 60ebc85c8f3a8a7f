"""Rules of the deep track that need no IO: progress, backoff, waves."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Final

from dualtrack.domain.errors import DualtrackError
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.step import Step
from dualtrack.domain.tool import DELEGATE_TOOL, Effect


def _failure(step: Step) -> str | None:
    """What failed in a step, as one comparable text; None when nothing did."""
    failed = [(call.tool, json.dumps(call.arguments, sort_keys=True), call.preview) for call in step.calls if call.ok is False]
    return repr(failed) if failed else None


def same_failures(steps: Sequence[Step]) -> int:
    """How many of the last steps made the same calls that failed the same way; 0 where nothing failed in the last one."""
    last = _failure(steps[-1]) if steps else None
    if last is None:
        return 0
    return next((n for n, step in enumerate(reversed(steps)) if _failure(step) != last), len(steps))


def is_stuck(steps: Sequence[Step], times: int) -> bool:
    """Whether the last `times` steps made the same calls that failed the same way."""
    return same_failures(steps[-times:]) == times


def needs_reflection(steps: Sequence[Step]) -> bool:
    """Whether the last step went wrong: a call or a check failed, or its answer was no action."""
    return bool(steps) and (any(call.ok is False for call in steps[-1].calls) or bool(steps[-1].note))


def gives_up(error: DualtrackError, failures: int, limits: PlatformLimits) -> bool:
    """Whether the `failures`-th failure in a row, `error`, is the last one: outages are waited out until the job's time is over."""
    return not error.retryable or (not error.outage and failures >= limits.attempts)


def backoff(failures: int, limits: PlatformLimits) -> float:
    """Seconds to wait after the `failures`-th failure of our machinery in a row: exponential with full jitter, at least a tenth of the cap.

    Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
    """
    cap = min(limits.backoff_max_s, limits.backoff_s * 2.0 ** min(failures - 1, 16))
    return cap * (0.1 + 0.9 * random.random())  # noqa: S311 - jitter, not a secret


_SIDE_BY_SIDE: Final = frozenset({Effect.PURE.value, DELEGATE_TOOL})


def waves(kinds: Sequence[str]) -> list[int]:
    """The wave of each call: neighbouring pure calls share one, so do neighbouring delegations; every other has one of its own, in order.

    A call's kind is its effect, or the name of `delegate`.
    """
    found: list[int] = []
    for position, kind in enumerate(kinds):
        if position and kind in _SIDE_BY_SIDE and kinds[position - 1] == kind:
            found.append(found[-1])
        else:
            found.append(found[-1] + 1 if found else 0)
    return found
