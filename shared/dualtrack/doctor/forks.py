"""Promises about jobs that go on from another one."""

from __future__ import annotations

from typing import Final

from dualtrack.doctor.check import Check, Subject

CHECKS: Final = (
    Check(
        name="forks.workspace",
        subject=Subject.JOBS,
        promise="a fork begins with the workspace that was recorded last up to its step, in the jobs that took those steps",
        # Where an earlier release did not write down what a fork began with, that can be told as long as it has changed nothing.
        sql="""
            SELECT f.id AS job_id, f.id AS subject, format('began with %s; after step %s of %s it was %s',
                coalesce(began.workspace, 'no files'), f.forked_step, f.forked_from, coalesce(stood.workspace, 'no files')) AS detail
            FROM jobs f
            CROSS JOIN LATERAL (
                SELECT e.data ? 'workspace' AS told,
                    CASE WHEN e.data ? 'workspace' THEN e.data->>'workspace' ELSE f.workspace END AS workspace
                FROM events e WHERE e.job_id = f.id AND e.type = 'job.forked'
            ) began
            LEFT JOIN LATERAL (
                WITH RECURSIVE line (id, through, back) AS (
                    SELECT f.forked_from, f.forked_step, 1
                    UNION ALL
                    SELECT j.forked_from, least(line.through, j.forked_step), line.back + 1 FROM line JOIN jobs j ON j.id = line.id
                    WHERE j.forked_from IS NOT NULL
                )
                SELECT true AS found, last.workspace FROM line CROSS JOIN LATERAL (
                    SELECT e.data->>'workspace' AS workspace FROM events e JOIN calls c ON c.id = e.data->>'call_id'
                    WHERE e.job_id = line.id AND e.type = 'call.finished' AND e.data ? 'workspace' AND c.step <= line.through
                    ORDER BY e.seq DESC LIMIT 1
                ) last
                ORDER BY line.back LIMIT 1
            ) recorded ON true
            CROSS JOIN LATERAL (SELECT CASE WHEN recorded.found THEN recorded.workspace ELSE f.first_workspace END AS workspace) stood
            WHERE f.forked_from IS NOT NULL AND began.workspace IS DISTINCT FROM stood.workspace AND (began.told OR NOT EXISTS (
                SELECT FROM events e WHERE e.job_id = f.id AND e.type = 'call.finished' AND e.data ? 'workspace'
            ))
        """,
        advice="It goes on with other files than were there: fork again from the same step, and rely on nothing that this one has done.",
    ),
)
