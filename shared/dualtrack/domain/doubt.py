"""Doubt: external calls of which nobody knows whether they happened."""

from __future__ import annotations

from typing import Final

from dualtrack.domain.step import Call
from dualtrack.domain.tool import Effect

OUTCOME: Final = "outcome"
"""In a call's `details`: what became of it, where more is to be said than whether it succeeded."""
UNKNOWN: Final = "unknown"
"""`details.outcome` of a call that ended in doubt; on an open one: an earlier attempt is in doubt, and it is to be made again."""
DOUBTED: Final = {OUTCOME: UNKNOWN}
"""The `details` of such a call."""
TOLD: Final = (
    "Outcome unknown: the call was begun, but its answer never came (a worker died, or the connection broke). "
    "It may or may not have happened: find out before you do it again."
)
EARLIER: Final = "An earlier attempt at this call may or may not have happened."


def in_doubt(call: Call) -> bool:
    """Whether a call that has no outcome may have happened by its last attempt."""
    return call.effect is Effect.EXTERNAL and call.intent_at is not None


def may_have_happened(call: Call) -> bool:
    """Whether a call may have happened by any of its attempts: an external one that was begun."""
    return in_doubt(call) or (call.effect is Effect.EXTERNAL and call.details.get(OUTCOME) == UNKNOWN)
