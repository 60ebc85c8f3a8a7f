"""Observations: a bounded preview in context, the whole in the object store."""

from __future__ import annotations

from typing import Final

from dualtrack.db import steps
from dualtrack.engine.runtime import Runtime

SHORT_CHARS: Final = 240
"""What is left in context of an observation once its step was compacted."""


def key(tenant_id: str, job_id: str, call_id: str, attempt: int) -> str:
    """Where the whole observation of one attempt lies; a late attempt can't overwrite a newer one's."""
    return f"observations/{tenant_id}/{job_id}/{call_id}/{attempt}"


def preview(text: str, call_id: str, limit: int) -> str:
    """`text` itself while it has at most `limit` characters, else its beginning and end and how to read the rest."""
    if len(text) <= limit:
        return text
    head, tail = limit * 3 // 4, limit // 4
    left_out = len(text) - head - tail
    note = f"\n[… {left_out} of {len(text)} characters left out; read on with read_artifact call_id={call_id} offset={head}]\n"
    return text[:head] + note + text[-tail:]


def shortened(text: str, call_id: str) -> str:
    """An observation of a compacted step."""
    if len(text) <= SHORT_CHARS:
        return text
    return f"{text[:SHORT_CHARS]}… [shortened; all of it: read_artifact call_id={call_id}]"


def read(runtime: Runtime, job_id: str, call_id: str) -> str:
    """The whole observation of a call of this job, or of what it was forked from up to there.

    Raises:
        NotFound, ObjectMissing, StorageUnavailable: it can't be read.
    """
    with runtime.database.transaction() as tx:
        call = steps.readable_call(tx, call_id, job_id=job_id)
    if call.observation_key is None:
        return call.preview
    return runtime.store.get(call.observation_key).decode("utf-8", errors="replace")
