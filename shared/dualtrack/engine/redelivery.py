"""A message that the broker delivers again: whoever had it may have died between a commit and the rings that belong to it."""

from __future__ import annotations

import logging
from typing import Final

from dualtrack.db import children as relatives
from dualtrack.db import claims, jobs, steps
from dualtrack.domain.errors import DualtrackError
from dualtrack.engine import children
from dualtrack.engine.runtime import Runtime
from dualtrack.queues.port import Task, ring_for

_LOG: Final = logging.getLogger(__name__)


class Redelivery:
    """Makes rings good that a dead worker owed, at once instead of at the scheduler's next look at the row (`limits.ring_s`).

    What it rings for may be rung for already, which does no harm; and what it publishes is no redelivery, so nothing goes round.
    """

    def __init__(self, runtime: Runtime, task: Task) -> None:
        """`task`: what the redelivered messages ring for."""
        self._runtime = runtime
        self._task = task

    def ring(self, row_id: str) -> None:
        """Ring for everything else of that row's job that waits for a worker, and of its parent and their children.

        Raises nothing: the scheduler rings as well, only later.
        """
        try:
            with self._runtime.database.transaction() as tx:
                job = jobs.get(tx, row_id if self._task is Task.PLAN else steps.call(tx, row_id).job_id)
            if job.parent_id is not None and job.finished_at is not None:
                children.tell_parent(self._runtime, job.id)
            planners, executors = [], []
            with self._runtime.database.transaction() as tx:
                for job_id in filter(None, (job.id, job.parent_id)):
                    executors += claims.waiting(tx, "calls", job_id)
                    for each in (job_id, *relatives.unstarted(tx, job_id)):
                        planners += claims.waiting(tx, "jobs", each)
            due = [(Task.PLAN, row) for row in planners] + [(Task.EXECUTE, row) for row in executors]
            self._runtime.doorbell.ring(
                [ring_for(task, row.id, priority=row.priority, traceparent=row.traceparent) for task, row in due if row.id != row_id]
            )
        except DualtrackError as error:
            _LOG.warning("not rung again, the scheduler will: %s", error, extra={"row_id": row_id})
