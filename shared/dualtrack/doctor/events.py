"""Promises about events: gapless, one end, one outcome for each call."""

from __future__ import annotations

from typing import Final

from dualtrack.doctor.check import Check, Subject
from dualtrack.doctor.sql import CALL_OUTCOMES, JOB_ENDS, listed
from dualtrack.domain.lifecycle import CALL_TERMINAL, TERMINAL

_SUSPECT: Final = "Don't change the rows by hand: keep a copy of the database, then report it with the job's events and the services' logs."

CHECKS: Final = (
    Check(
        name="events.gapless",
        subject=Subject.EVENTS,
        promise="a job's events are numbered 1 to last_seq, without gap or repeat",
        sql="""
            SELECT j.id AS job_id, j.id AS subject,
                format('last_seq is %s; %s events, numbered %s to %s', j.last_seq, coalesce(e.n, 0), e.low, e.high) AS detail
            FROM jobs j LEFT JOIN (
                SELECT job_id, count(DISTINCT seq) AS different, count(*) AS n, min(seq) AS low, max(seq) AS high
                FROM events GROUP BY job_id
            ) e ON e.job_id = j.id
            WHERE coalesce(e.n, 0) <> j.last_seq OR (e.n > 0 AND (e.different <> e.n OR e.low <> 1 OR e.high <> e.n))
        """,
        advice=f"Events were deleted or written past the platform: restore the database. {_SUSPECT}",
    ),
    Check(
        name="events.first",
        subject=Subject.JOBS,
        promise="every job begins with one job.queued",
        sql="""
            SELECT j.id AS job_id, j.id AS subject, format('%s job.queued events, the first event is %s', count(e.seq) FILTER
                (WHERE e.type = 'job.queued'), coalesce(max(e.type) FILTER (WHERE e.seq = 1), 'missing')) AS detail
            FROM jobs j LEFT JOIN events e ON e.job_id = j.id AND (e.seq = 1 OR e.type = 'job.queued')
            GROUP BY j.id
            HAVING count(e.seq) FILTER (WHERE e.type = 'job.queued') <> 1
                OR coalesce(max(e.type) FILTER (WHERE e.seq = 1), '') <> 'job.queued'
        """,
        advice=_SUSPECT,
    ),
    Check(
        name="events.end",
        subject=Subject.JOBS,
        promise="a job that has ended has one end event, its last, that says its status; a live one has none",
        sql=f"""
            SELECT j.id AS job_id, j.id AS subject,
                format('status %s, last_seq %s, end events: %s', j.status, j.last_seq, coalesce(e.ends, 'none')) AS detail
            FROM jobs j LEFT JOIN (
                SELECT job_id, count(*) AS n, max(type) AS type, max(seq) AS seq,
                    string_agg(type || ' at ' || seq, ', ' ORDER BY seq) AS ends
                FROM events WHERE type IN ({JOB_ENDS}) GROUP BY job_id
            ) e ON e.job_id = j.id
            WHERE CASE WHEN j.status IN ({listed(TERMINAL)})
                THEN coalesce(e.n, 0) <> 1 OR e.type <> 'job.' || j.status OR e.seq <> j.last_seq
                ELSE coalesce(e.n, 0) <> 0 END
        """,
        advice=_SUSPECT,
    ),
    Check(
        name="events.outcomes",
        subject=Subject.CALLS,
        promise="a call that has ended has one outcome event that says how; an open one, and one that was copied by a fork, has none",
        sql=f"""
            SELECT c.job_id, c.id AS subject,
                format('%s call of %s: %s', c.status, c.tool, coalesce(e.outcomes, 'no outcome event')) AS detail
            FROM calls c JOIN jobs j ON j.id = c.job_id LEFT JOIN (
                SELECT job_id, data->>'call_id' AS call_id, count(*) AS n, max(type) AS type, bool_and(data->'ok' = 'true'::jsonb) AS ok,
                    string_agg(type || ' at ' || seq, ', ' ORDER BY seq) AS outcomes
                FROM events WHERE type IN ({CALL_OUTCOMES}) GROUP BY job_id, data->>'call_id'
            ) e ON e.job_id = c.job_id AND e.call_id = c.id
            WHERE CASE WHEN c.step <= coalesce(j.forked_step, 0) THEN coalesce(e.n, 0) <> 0
                WHEN c.status IN ({listed(CALL_TERMINAL)})
                THEN coalesce(e.n, 0) <> 1 OR (c.status = 'cancelled') <> (e.type = 'call.cancelled')
                    OR (e.type = 'call.finished' AND e.ok IS DISTINCT FROM (c.status = 'succeeded'))
                ELSE coalesce(e.n, 0) <> 0 END
        """,
        advice=f"An outcome was written twice, or past the platform. {_SUSPECT}",
    ),
    Check(
        name="events.known_calls",
        subject=Subject.EVENTS,
        promise="every call event is of a call of the same job",
        sql="""
            SELECT e.job_id, e.job_id || '/' || e.seq AS subject, format('%s of call %s', e.type, e.data->>'call_id') AS detail
            FROM events e WHERE e.type LIKE 'call.%' AND NOT EXISTS (
                SELECT FROM calls c WHERE c.id = e.data->>'call_id' AND c.job_id = e.job_id
            )
        """,
        advice=_SUSPECT,
    ),
)
