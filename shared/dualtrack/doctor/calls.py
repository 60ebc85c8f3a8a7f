"""Promises about calls."""

from __future__ import annotations

from typing import Final

from dualtrack.doctor.check import Check, Subject

CHECKS: Final = (
    Check(
        name="calls.lease",
        subject=Subject.CALLS,
        promise="a running call has an owner and a lease; any other has neither",
        sql="""
            SELECT job_id, id AS subject, format('%s, owner %s, lease until %s', status, owner, lease_until) AS detail FROM calls
            WHERE (status = 'running') <> (owner IS NOT NULL) OR (owner IS NULL) <> (lease_until IS NULL)
        """,
        advice="The row was written with the database's checks off: restore it from a backup.",
    ),
    Check(
        name="calls.at_rest",
        subject=Subject.CALLS,
        promise="a call that has ended has the time of its end and nothing due; an open one has no such time",
        sql="""
            SELECT job_id, id AS subject, format('%s, finished %s, due %s', status, finished_at, due_at) AS detail FROM calls
            WHERE (status IN ('succeeded', 'failed', 'cancelled')) <> (finished_at IS NOT NULL)
                OR (finished_at IS NOT NULL AND (due_at IS NOT NULL OR owner IS NOT NULL))
        """,
        advice="The row was written with the database's checks off: restore it from a backup.",
    ),
    Check(
        name="calls.live_job",
        subject=Subject.CALLS,
        promise="an open call belongs to a live job, and to its last step",
        sql="""
            SELECT c.job_id, c.id AS subject,
                format('%s call of step %s; the job is %s at step %s', c.status, c.step, j.status, j.step) AS detail
            FROM calls c JOIN jobs j ON j.id = c.job_id
            WHERE c.finished_at IS NULL AND (j.finished_at IS NOT NULL OR c.step <> j.step)
        """,
        advice="Nobody waits for it any more: report it with the job's events.",
    ),
    Check(
        name="calls.doubt",
        subject=Subject.CALLS,
        promise="an external call that was begun ends with an outcome, or says that it is unknown",
        sql="""
            SELECT job_id, id AS subject, format('%s of %s, begun at %s', status, tool, intent_at) AS detail FROM calls
            WHERE effect = 'external' AND status = 'cancelled' AND intent_at IS NOT NULL AND details->>'outcome' IS DISTINCT FROM 'unknown'
        """,
        advice="It may have happened, and nobody is told so: ask the service that it called.",
    ),
    Check(
        name="calls.step",
        subject=Subject.CALLS,
        promise="every call belongs to a recorded step",
        sql="""
            SELECT c.job_id, c.id AS subject, format('step %s is not recorded', c.step) AS detail FROM calls c
            WHERE NOT EXISTS (SELECT FROM steps s WHERE s.job_id = c.job_id AND s.number = c.step)
        """,
        advice="Steps were deleted by hand: restore the database from a backup.",
    ),
)
