"""Promises about what waits: for a person, for money, for another job."""

from __future__ import annotations

from typing import Final

from dualtrack.doctor.check import Check, Subject

MOMENT_S: Final = 600
"""What is done by the second of two transactions (a child's row, its parent's outcome) is missing only if it still is after this."""

CHECKS: Final = (
    Check(
        name="jobs.waiting",
        subject=Subject.JOBS,
        promise="a waiting job says what for and until when, and that is so: it is held, or a call of it is",
        sql="""
            SELECT j.id AS job_id, j.id AS subject, format('waiting (%s) until %s, hold %s', j.reason, j.waiting_until, j.hold) AS detail
            FROM jobs j
            WHERE j.status = 'waiting' AND j.stopping IS NULL AND (j.waiting_until IS NULL OR j.waiting_since IS NULL OR NOT CASE j.reason
                WHEN 'paused' THEN coalesce(j.hold IN ('paused', 'parent'), false)
                WHEN 'budget' THEN coalesce(j.hold = 'budget', false)
                WHEN 'approval' THEN EXISTS (
                    SELECT FROM calls c WHERE c.job_id = j.id AND c.finished_at IS NULL AND c.held IN ('approval', 'unknown')
                )
                WHEN 'input' THEN EXISTS (SELECT FROM calls c WHERE c.job_id = j.id AND c.finished_at IS NULL AND c.held = 'input')
                ELSE false
            END)
        """,
        advice="Nobody can let it go on by deciding: cancel it (`dualtrack jobs cancel ID`) and report it with its events.",
    ),
    Check(
        name="calls.held",
        subject=Subject.CALLS,
        promise="every held call has what it waits for: a pending request to a person, or a child job",
        sql=f"""
            SELECT c.job_id, c.id AS subject, format('%s, held for %s', c.status, c.held) AS detail
            FROM calls c
            WHERE c.held IS NOT NULL AND c.finished_at IS NULL AND CASE c.held
                WHEN 'child' THEN c.created_at < now() - interval '{MOMENT_S} seconds' AND NOT EXISTS (
                    SELECT FROM jobs child WHERE child.parent_call_id = c.id
                        AND coalesce(child.finished_at, now()) > now() - interval '{MOMENT_S} seconds'
                )
                ELSE NOT EXISTS (SELECT FROM approvals a WHERE a.call_id = c.id AND a.status = 'pending')
            END
        """,
        advice="Nobody will be asked, so it waits until its job's wait is over: cancel the job and report it with its events.",
    ),
    Check(
        name="approvals.pending",
        subject=Subject.APPROVALS,
        promise="every pending request to a person is about a held call of a live job",
        sql="""
            SELECT a.job_id, a.id AS subject, format('%s of call %s, which is %s, held for %s; the job is %s', a.kind, a.call_id, c.status,
                coalesce(c.held, 'nothing'), j.status) AS detail
            FROM approvals a JOIN calls c ON c.id = a.call_id JOIN jobs j ON j.id = a.job_id
            WHERE a.status = 'pending' AND (c.held IS NULL OR c.job_id <> a.job_id OR j.finished_at IS NOT NULL)
        """,
        advice="A decision on it would change nothing: report it with the job's events.",
    ),
    Check(
        name="approvals.bound",
        subject=Subject.CALLS,
        promise="every call that needed consent and was begun was approved with exactly its arguments",
        sql="""
            SELECT c.job_id, c.id AS subject, format('%s call of %s, attempt %s: no such approval', c.status, c.tool, c.attempt)
                AS detail
            FROM calls c
            WHERE c.guarded AND c.attempt > 0 AND NOT EXISTS (
                SELECT FROM approvals a
                WHERE a.call_id = c.id AND a.status = 'approved' AND coalesce(a.edited_arguments, a.arguments) = c.arguments
            )
        """,
        advice="It ran without the consent that its agent's policy asks for: look at its arguments and outcome, and report it.",
    ),
    Check(
        name="messages.numbered",
        subject=Subject.MESSAGES,
        promise="a job's messages are numbered from 1, each with the event that tells of it, but for those that were copied by a fork",
        sql="""
            SELECT j.id AS job_id, j.id AS subject,
                format('%s messages, numbered to %s; %s events', coalesce(m.n, 0), m.high, coalesce(e.n, 0)) AS detail
            FROM jobs j
            LEFT JOIN (SELECT job_id, count(*) AS n, max(number) AS high FROM messages GROUP BY job_id) m ON m.job_id = j.id
            LEFT JOIN (SELECT job_id, count(*) AS n FROM events WHERE type = 'message.added' GROUP BY job_id) e ON e.job_id = j.id
            LEFT JOIN (SELECT job_id, (data->>'messages')::int AS n FROM events WHERE type = 'job.forked') f ON f.job_id = j.id
            WHERE coalesce(m.n, 0) <> coalesce(e.n, 0) + coalesce(f.n, 0) OR coalesce(m.n, 0) <> j.messages OR (m.n > 0 AND m.high <> m.n)
        """,
        advice="A message was lost or doubled: report it with the job's events.",
    ),
)
