"""Events that webhooks tell of: the deliveries are written in the same transaction as the event, so that none is lost or made up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dualtrack.db import deliveries, events, webhooks
from dualtrack.db.engine import Transaction
from dualtrack.domain.events import NewEvent
from dualtrack.domain.ids import new_id
from dualtrack.domain.webhook import NoticeType
from dualtrack.webhooks import payload

_KINDS: Final = {kind.value: kind for kind in NoticeType}


def record(tx: Transaction, job_id: str, *new: NewEvent) -> int:
    """Append events to a job, as `db.events.append`, and tell the webhooks of those that they listen to; the last number written.

    The job's row must already be as the events say: its status goes into what is told.
    """
    last = events.append(tx, job_id, *new)
    first = last - len(new) + 1
    told = [(first + n, event, _KINDS[event.type.value]) for n, event in enumerate(new) if event.type.value in _KINDS]
    if told:
        _tell(tx, job_id, told)
    return last


def _tell(tx: Transaction, job_id: str, told: Sequence[tuple[int, NewEvent, NoticeType]]) -> None:
    endpoints = webhooks.listening(tx, job_id, [kind for _, _, kind in told])
    if not endpoints:
        return
    row = endpoints[0]
    job = {"id": job_id, "status": row.status, "agent": row.agent_name, "metadata": row.metadata, "parent_id": row.parent_id}
    at = events.times(tx, job_id, [seq for seq, _, _ in told])
    rows = []
    for seq, event, kind in told:
        text = payload.body(kind, at[seq], job=job, seq=seq, data=event.data)
        rows += [
            {"id": new_id("msg"), "webhook_id": endpoint.id, "job_id": job_id, "seq": seq, "type": kind.value, "body": text}
            for endpoint in endpoints
            if kind.value in endpoint.events
        ]
    deliveries.add(tx, rows)
