"""Promises about schedules."""

from __future__ import annotations

from typing import Final

from dualtrack.doctor.check import Check, Severity, Subject
from dualtrack.doctor.jobs import LATE_S

CHECKS: Final = (
    Check(
        name="schedules.due",
        subject=Subject.SCHEDULES,
        promise=f"no schedule is overdue by {LATE_S // 60} minutes",
        sql=f"""
            SELECT NULL AS job_id, s.id AS subject, format('%s (%s) was due at %s', s.cron, s.timezone, s.next_at) AS detail
            FROM schedules s WHERE s.next_at < now() - interval '{LATE_S} seconds'
        """,
        advice="No scheduler is running, or it can't act on this one: its log says why (an object store that is away, a record of a newer "
        "release).",
        severity=Severity.NOTICE,
    ),
)
