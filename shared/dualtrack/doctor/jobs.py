"""Promises about jobs: each live one will be woken, each ended one is at rest."""

from __future__ import annotations

from typing import Final

from dualtrack.doctor.check import Check, Severity, Subject

LATE_S: Final = 600
"""Seconds after which a lease that nobody freed tells that no scheduler is running."""

CHECKS: Final = (
    Check(
        name="jobs.woken",
        subject=Subject.JOBS,
        promise="every live job is due, claimed, told to stop, waiting, or has an open call that is due, claimed or held",
        # A job that was told to stop is found by the scheduler as it is; see db.jobs.stopped.
        sql="""
            SELECT j.id AS job_id, j.id AS subject, format('%s, phase %s, nothing due or claimed', j.status, j.phase) AS detail
            FROM jobs j
            WHERE j.finished_at IS NULL AND j.stopping IS NULL AND j.status <> 'waiting' AND CASE j.phase
                WHEN 'plan' THEN j.due_at IS NULL AND j.owner IS NULL
                ELSE NOT EXISTS (
                    SELECT FROM calls c WHERE c.job_id = j.id AND c.finished_at IS NULL AND num_nonnulls(c.due_at, c.owner, c.held) > 0
                )
            END
        """,
        advice="Nobody will wake it before its wall time is over: cancel it (`dualtrack jobs cancel ID`) and report it with its events.",
    ),
    Check(
        name="jobs.at_rest",
        subject=Subject.JOBS,
        promise="a job that has ended has no owner, nothing due and no open call",
        sql="""
            SELECT j.id AS job_id, j.id AS subject, format('%s, owner %s, due %s, %s open calls', j.status, j.owner, j.due_at,
                (SELECT count(*) FROM calls c WHERE c.job_id = j.id AND c.finished_at IS NULL)) AS detail
            FROM jobs j
            WHERE j.finished_at IS NOT NULL AND (j.phase <> 'none' OR j.owner IS NOT NULL OR j.due_at IS NOT NULL OR EXISTS (
                SELECT FROM calls c WHERE c.job_id = j.id AND c.finished_at IS NULL
            ))
        """,
        advice="A worker could still act on it: find out who changed the rows; the job's events say what the platform did.",
    ),
    Check(
        name="jobs.finished",
        subject=Subject.JOBS,
        promise="a job has a time of its end exactly when its status is final",
        sql="""
            SELECT id AS job_id, id AS subject, format('status %s, finished_at %s', status, finished_at) AS detail FROM jobs
            WHERE (status IN ('succeeded', 'failed', 'cancelled', 'expired')) <> (finished_at IS NOT NULL)
        """,
        advice="The row was written with the database's checks off: restore it from a backup.",
    ),
    Check(
        name="jobs.lease",
        subject=Subject.JOBS,
        promise="a claimed job has an owner and a lease, or neither",
        sql="""
            SELECT id AS job_id, id AS subject, format('owner %s, lease until %s', owner, lease_until) AS detail FROM jobs
            WHERE (owner IS NULL) <> (lease_until IS NULL)
        """,
        advice="The row was written with the database's checks off: restore it from a backup.",
    ),
    Check(
        name="jobs.scheduler",
        subject=Subject.JOBS,
        promise=f"no lease ran out more than {LATE_S // 60} minutes ago without being freed, and no job is that long past its wall time",
        sql=f"""
            SELECT id AS job_id, id AS subject, format('lease until %s, wall time until %s', lease_until, deadline_at) AS detail FROM jobs
            WHERE finished_at IS NULL
                AND least(lease_until, CASE WHEN hold IS NULL AND status <> 'waiting' THEN deadline_at END)
                    < now() - interval '{LATE_S} seconds'
            UNION ALL
            SELECT job_id, id, format('lease until %s', lease_until) FROM calls WHERE lease_until < now() - interval '{LATE_S} seconds'
        """,
        advice="No scheduler is running, or it can't get at these rows: start one, and read its log.",
        severity=Severity.NOTICE,
    ),
)
