"""Running the checks: one snapshot of the database for all of them, in the server's memory and not in ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlalchemy import Connection, text

from dualtrack.db.engine import Database
from dualtrack.doctor import calls, events, families, forks, jobs, schedules, steps, usage, waiting, webhooks
from dualtrack.doctor.check import FIRST, Finding, Subject
from dualtrack.doctor.run import run
from dualtrack.domain.errors import NotFound

CHECKS: Final = (
    *events.CHECKS,
    *steps.CHECKS,
    *jobs.CHECKS,
    *calls.CHECKS,
    *waiting.CHECKS,
    *families.CHECKS,
    *forks.CHECKS,
    *webhooks.CHECKS,
    *schedules.CHECKS,
    *usage.CHECKS,
)
_JOB_COLUMN: Final[dict[Subject, str | None]] = {
    Subject.JOBS: "id",
    Subject.STEPS: "job_id",
    Subject.CALLS: "job_id",
    Subject.EVENTS: "job_id",
    Subject.APPROVALS: "job_id",
    Subject.MESSAGES: "job_id",
    Subject.DELIVERIES: "job_id",
    Subject.WEBHOOKS: "job_id",
    Subject.SCHEDULES: None,
}
"""Where each says whose it is; None: no job's."""


def examine(database: Database, *, job_id: str | None = None, first: int = FIRST) -> Iterator[Finding]:
    """What each check finds, as it is found: of all jobs, or of one. The platform may be at work meanwhile.

    Raises:
        NotFound: there is no such job.
        DatabaseUnavailable: while the findings are taken.
    """
    with database.transaction() as tx:
        # Every check sees the same moment; no check is cut short, however large the database.
        tx.connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
        tx.connection.execute(text("SET LOCAL statement_timeout = 0"))
        if job_id is not None and tx.connection.execute(text("SELECT 1 FROM jobs WHERE id = :job"), {"job": job_id}).scalar() is None:
            raise NotFound(f"There is no job {job_id!r}.", param="job_id")
        counts = {subject: _count(tx.connection, subject, job_id) for subject in _JOB_COLUMN}
        for check in CHECKS:
            yield run(tx.connection, check, counts[check.subject], job_id=job_id, first=first)


def _count(connection: Connection, subject: Subject, job_id: str | None) -> int:
    column = _JOB_COLUMN[subject]
    if job_id is not None and column is None:
        return 0
    where = "" if job_id is None else f" WHERE {column} = :job"
    statement = f"SELECT count(*) FROM {subject.value}{where}"
    return int(connection.execute(text(statement), {} if job_id is None else {"job": job_id}).scalar_one())
