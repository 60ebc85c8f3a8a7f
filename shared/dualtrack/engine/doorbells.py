"""Ringing after the commit. A ring that fails is only logged: the row is due, so the scheduler rings it again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from dualtrack.db.engine import Transaction
from dualtrack.domain.errors import BrokerUnavailable
from dualtrack.domain.job import Job
from dualtrack.engine.runtime import Runtime
from dualtrack.queues.port import Ring, Task, ring_for

_LOG: Final = logging.getLogger(__name__)


def plan(runtime: Runtime, job: Job) -> None:
    """Ring for the planner now."""
    ring(runtime, [for_plan(job)])


def plan_after_commit(tx: Transaction, runtime: Runtime, job: Job) -> None:
    """Ring for the planner once this transaction is committed."""
    tx.after_commit(lambda: plan(runtime, job))


def execute_after_commit(tx: Transaction, runtime: Runtime, call_ids: Sequence[str], job: Job) -> None:
    """Ring for executors once this transaction is committed."""
    tx.after_commit(lambda: ring(runtime, for_execute(call_ids, job)))


def for_plan(job: Job) -> Ring:
    """A ring for the planner."""
    return ring_for(Task.PLAN, job.id, priority=job.spec.priority, traceparent=job.traceparent)


def for_execute(call_ids: Sequence[str], job: Job) -> list[Ring]:
    """Rings for executors."""
    return [ring_for(Task.EXECUTE, call_id, priority=job.spec.priority, traceparent=job.traceparent) for call_id in call_ids]


def ring(runtime: Runtime, rings: Sequence[Ring]) -> None:
    """Ring now for what is committed. Raises nothing."""
    rows = {"row_ids": [each.row_id for each in rings]}
    try:
        runtime.doorbell.ring(rings)
    except BrokerUnavailable as error:
        _LOG.warning("not rung, the scheduler will: %s", error, extra=rows)
    except Exception:  # noqa: BLE001 - whatever it is: what is rung for is committed
        _LOG.exception("not rung, the scheduler will", extra=rows)
