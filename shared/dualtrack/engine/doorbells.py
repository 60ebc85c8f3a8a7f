"""Ringing after the commit. A ring that fails is only logged: the row is due, so the scheduler rings it again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from dualtrack.db.engine import Transaction
from dualtrack.domain.errors import BrokerUnavailable
from dualtrack.domain.job import Job
from dualtrack.engine.runtime import Runtime

_LOG: Final = logging.getLogger(__name__)


def plan(runtime: Runtime, job: Job) -> None:
    """Ring for the planner now."""
    _ring(job, lambda: runtime.doorbell.plan(job.id, priority=job.spec.priority, traceparent=job.traceparent))


def plan_after_commit(tx: Transaction, runtime: Runtime, job: Job) -> None:
    """Ring for the planner once this transaction is committed."""
    tx.after_commit(lambda: plan(runtime, job))


def execute(runtime: Runtime, call_ids: Sequence[str], job: Job) -> None:
    """Ring for executors now."""

    def ring() -> None:
        for call_id in call_ids:  # the broker that does not take one won't take the next
            runtime.doorbell.execute(call_id, priority=job.spec.priority, traceparent=job.traceparent)

    _ring(job, ring)


def execute_after_commit(tx: Transaction, runtime: Runtime, call_ids: Sequence[str], job: Job) -> None:
    """Ring for executors once this transaction is committed."""
    tx.after_commit(lambda: execute(runtime, call_ids, job))


def _ring(job: Job, act: Callable[[], None]) -> None:
    try:
        act()
    except BrokerUnavailable as error:
        _LOG.warning("not rung, the scheduler will: %s", error, extra={"job_id": job.id})
    except Exception:  # noqa: BLE001 - whatever it is: what is rung for is committed
        _LOG.exception("not rung, the scheduler will", extra={"job_id": job.id})
