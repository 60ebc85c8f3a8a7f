"""Promises about steps."""

from __future__ import annotations

from typing import Final

from dualtrack.doctor.check import Check, Subject

CHECKS: Final = (
    Check(
        name="steps.numbered",
        subject=Subject.STEPS,
        promise="a job's steps are numbered 1 to its step",
        sql="""
            SELECT j.id AS job_id, j.id AS subject,
                format('step is %s; %s steps, numbered %s to %s', j.step, coalesce(s.n, 0), s.low, s.high) AS detail
            FROM jobs j LEFT JOIN (SELECT job_id, count(*) AS n, min(number) AS low, max(number) AS high FROM steps GROUP BY job_id) s
                ON s.job_id = j.id
            WHERE coalesce(s.n, 0) <> j.step OR (s.n > 0 AND (s.low <> 1 OR s.high <> s.n))
        """,
        advice="Steps were deleted or written past the platform: restore the database from a backup.",
    ),
    Check(
        name="steps.events",
        subject=Subject.STEPS,
        promise="every step has the one event that tells of it, but for those that were copied by a fork",
        sql="""
            SELECT s.job_id, s.job_id || '/' || s.number AS subject, format('step %s has %s events', s.number, coalesce(e.n, 0)) AS detail
            FROM steps s JOIN jobs j ON j.id = s.job_id LEFT JOIN (
                SELECT job_id, data->>'step' AS number, count(*) AS n FROM events
                WHERE type IN ('step.decided', 'step.malformed') GROUP BY job_id, data->>'step'
            ) e ON e.job_id = s.job_id AND e.number = s.number::text
            WHERE coalesce(e.n, 0) <> CASE WHEN s.number <= coalesce(j.forked_step, 0) THEN 0 ELSE 1 END
        """,
        advice="A step without its event can't be told to anybody: report it with the job's events.",
    ),
    Check(
        name="steps.summary",
        subject=Subject.STEPS,
        promise="what stands for a job's older steps is the summary of its last compaction, and stands for no step that there is not",
        # A fork begins with a summary from the job that it was forked from.
        sql="""
            SELECT j.id AS job_id, j.id AS subject,
                format('summary up to step %s of %s, last event up to %s', j.compacted_through, j.step, e.data->>'through_step') AS detail
            FROM jobs j LEFT JOIN LATERAL (
                SELECT data FROM events WHERE job_id = j.id AND type = 'context.compacted' ORDER BY seq DESC LIMIT 1
            ) e ON true
            WHERE j.summary <> '' AND (j.compacted_through > j.step OR (
                (j.forked_from IS NULL OR e.data IS NOT NULL)
                AND (e.data->>'summary', (e.data->>'through_step')::int) IS DISTINCT FROM (j.summary, j.compacted_through)
            ))
        """,
        advice="The row was written past the platform: the model is shown something else than the job's events say.",
    ),
)
