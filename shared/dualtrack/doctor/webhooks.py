"""Promises about webhooks: what a job asked to be told of is told, and nothing else."""

from __future__ import annotations

from typing import Final

from dualtrack.doctor.check import Check, Subject

CHECKS: Final = (
    Check(
        name="webhooks.told",
        subject=Subject.EVENTS,
        promise="every event that a job's own webhook asks for has its delivery",
        sql="""
            SELECT e.job_id, e.job_id || '/' || e.seq AS subject, format('%s is not told to webhook %s', e.type, w.id) AS detail
            FROM webhooks w JOIN events e ON e.job_id = w.job_id AND w.events ? e.type
            WHERE (w.disabled_at IS NULL OR e.at < w.disabled_at)
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
)
