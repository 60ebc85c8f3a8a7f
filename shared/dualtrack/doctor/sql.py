"""Pieces of SQL that checks share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dualtrack.domain.events import END_EVENTS, EventType


def listed(values: Iterable[str]) -> str:
    """Our own names as the inside of `IN (…)`."""
    return ", ".join(f"'{value}'" for value in sorted(values))


JOB_ENDS: Final = listed(END_EVENTS)
CALL_OUTCOMES: Final = listed({EventType.CALL_FINISHED, EventType.CALL_CANCELLED})
