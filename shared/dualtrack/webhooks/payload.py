"""A delivery's body: small; whoever wants more asks the API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from dualtrack.domain.webhook import NoticeType

_TEXT_CHARS: Final = 1000
"""Of a text in a body."""
_TOLD: Final = ("reason", "message", "until", "steps", "usage")
"""Fields of an event's data that are passed on; an answer is not, for it may be long."""


def body(kind: NoticeType, at: datetime, *, job: Mapping[str, Any], seq: int, data: Mapping[str, Any]) -> str:
    """The body as it is signed and sent, the same on every attempt.

    Args:
        kind: of the event.
        at: when it happened.
        job: `id`, `status`, `agent`, `metadata`, `parent_id`.
        seq: the event's number in its job.
        data: the event's own.
    """
    told = {"job_id": job["id"], "seq": seq, **{name: job[name] for name in ("status", "agent", "metadata", "parent_id")}}
    if kind is NoticeType.ARTIFACT_SAVED:
        told["artifact"] = {"id": data["artifact_id"], **{name: data[name] for name in ("name", "size", "sha256", "content_type")}}
    told |= {name: _short(data[name]) for name in _TOLD if name in data}
    document = {"type": kind.value, "timestamp": at.isoformat().replace("+00:00", "Z"), "data": told}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _short(value: object) -> object:
    return value[:_TEXT_CHARS] if isinstance(value, str) else value
