"""Rows that can't even be claimed: a fault of ours, or something in them that nobody foresaw.

The claim was rolled back and with it all trace of the try. So it is counted by itself; or the row would be rung for until its job's
time is over, in vain.
"""

from __future__ import annotations

import logging
from typing import Final

from dualtrack.db import claims, jobs, steps
from dualtrack.domain.errors import InternalFault, RecordUnreadable
from dualtrack.domain.policies import backoff
from dualtrack.engine.ending import end_unreadable
from dualtrack.engine.runtime import Runtime

_LOG: Final = logging.getLogger(__name__)


def record(runtime: Runtime, kind: claims.Kind, row_id: str, error: Exception) -> None:
    """Write down that a claim failed: it is tried again after a pause, and ends its job where that can't help or was done often enough.

    Raises:
        DatabaseUnavailable: nothing was written.
    """
    unreadable = isinstance(error, RecordUnreadable)
    _LOG.error("%s can't be taken on: %s", row_id, error, extra={"row_id": row_id}, exc_info=not unreadable and error)
    with runtime.database.transaction() as tx:
        job_id = row_id if kind == "jobs" else steps.job_of(tx, row_id)
        if not jobs.lock_live(tx, job_id):
            return
        if isinstance(error, RecordUnreadable):
            end_unreadable(tx, job_id, error)
            return
        tries = claims.put_off(tx, kind, row_id, backoff(1, runtime.limits))
        if tries is not None and tries >= runtime.limits.attempts:
            fault = InternalFault(f"{type(error).__name__} in every one of {tries} tries to take the job on; see the workers' logs.")
            end_unreadable(tx, job_id, fault)
