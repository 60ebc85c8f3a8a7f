"""Promises about webhooks: what a job asked to be told of is told, and nothing else."""

from __future__ import annotations

from typing import Final

from dualtrack.doctor.check import Check, Severity, Subject
from dualtrack.webhooks.sealing import MARK

_MEANWHILE_S: Final = 60
"""What is recorded in a transaction that saw the endpoint before a change may have a later time than the change, and the reverse."""

CHECKS: Final = (
    Check(
        name="webhooks.told",
        subject=Subject.EVENTS,
        promise="every event that a job's own webhook asks for has its delivery, since it last changed",
        sql=f"""
            SELECT e.job_id, e.job_id || '/' || e.seq AS subject, format('%s is not told to webhook %s', e.type, w.id) AS detail
            FROM webhooks w JOIN events e ON e.job_id = w.job_id AND w.events ? e.type
            WHERE (w.disabled_at IS NULL OR e.at < w.disabled_at - interval '{_MEANWHILE_S} seconds')
                AND (w.changed_at IS NULL OR e.at > w.changed_at + interval '{_MEANWHILE_S} seconds')
                AND NOT EXISTS (SELECT FROM deliveries d WHERE d.webhook_id = w.id AND d.job_id = e.job_id AND d.seq = e.seq)
        """,
        advice="Its receiver does not know: tell it by hand, and report it.",
    ),
    Check(
        name="deliveries.true",
        subject=Subject.DELIVERIES,
        promise="every delivery tells of an event that there is, and is due until it is delivered or given up",
        sql="""
            SELECT d.job_id, d.id AS subject, format('%s of %s/%s, due %s', d.status, d.job_id, d.seq, d.due_at) AS detail
            FROM deliveries d LEFT JOIN events e ON e.job_id = d.job_id AND e.seq = d.seq AND e.type = d.type
            WHERE e.seq IS NULL OR (d.status = 'pending') <> (d.due_at IS NOT NULL)
        """,
        advice="Somebody is told what did not happen, or never: report it with the job's events.",
    ),
    Check(
        name="webhooks.sealed",
        subject=Subject.WEBHOOKS,
        promise="the signing secrets of webhooks and schedules are encrypted",
        sql=f"""
            SELECT w.job_id, w.id AS subject, 'its signing secret lies in the database in clear' AS detail
            FROM webhooks w WHERE NOT starts_with(w.secret, '{MARK}')
                OR (w.previous_until > now() AND NOT starts_with(w.previous_secret, '{MARK}'))
            UNION ALL
            SELECT NULL, s.id, 'the signing secret of its webhook lies in the database in clear'
            FROM schedules s WHERE NOT starts_with(s.spec->'webhook'->>'secret', '{MARK}')
        """,
        advice="Whoever reads the database or a backup can sign in the platform's name: set DUALTRACK_WEBHOOKS__SECRET_KEYS for router and "
        "scheduler, then `dualtrack seal-secrets` (docs/webhooks.md).",
        severity=Severity.NOTICE,
    ),
)
