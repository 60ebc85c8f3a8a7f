"""What a call's sandbox asked of the network, as events of its job."""

from __future__ import annotations

from collections.abc import Iterable

from dualtrack.domain.egress import EgressRequest
from dualtrack.domain.events import EventType, NewEvent
from dualtrack.domain.step import Call


def egress_events(call: Call, requests: Iterable[EgressRequest]) -> list[NewEvent]:
    """An event for each request (or sum of requests) that ended while the call was running, or before it since the last one."""
    about = {"call_id": call.id, "step": call.step, "tool": call.tool}
    return [NewEvent(EventType.EGRESS_REQUEST, {**about, **request.data}) for request in requests]
