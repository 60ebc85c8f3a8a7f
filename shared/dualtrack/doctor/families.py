"""Promises about children and their parents."""

from __future__ import annotations

from typing import Final

from dualtrack.doctor.check import Check, Severity, Subject
from dualtrack.doctor.jobs import LATE_S

CHECKS: Final = (
    Check(
        name="families.line",
        subject=Subject.JOBS,
        promise="a child belongs to a call of its parent, to its parent's family, tenant and key, one level below it",
        sql="""
            SELECT k.id AS job_id, k.id AS subject, format('child of %s by call %s, root %s, depth %s', k.parent_id, k.parent_call_id,
                k.root_id, k.depth) AS detail
            FROM jobs k LEFT JOIN jobs p ON p.id = k.parent_id LEFT JOIN calls c ON c.id = k.parent_call_id
            WHERE num_nonnulls(k.parent_id, k.parent_call_id, k.root_id) NOT IN (0, 3) OR (k.parent_id IS NULL) <> (k.depth = 0)
                OR (k.parent_id IS NOT NULL AND (c.job_id IS DISTINCT FROM p.id OR c.tool <> 'delegate' OR k.depth <> p.depth + 1
                    OR k.root_id <> coalesce(p.root_id, p.id) OR k.tenant_id <> p.tenant_id OR k.key_id IS DISTINCT FROM p.key_id))
        """,
        advice="Its budget is counted in the wrong family: cancel it, and report it.",
    ),
    Check(
        name="families.over",
        subject=Subject.JOBS,
        promise=f"no child is at work more than {LATE_S // 60} minutes after its parent's end",
        sql=f"""
            SELECT k.id AS job_id, k.id AS subject, format('%s, its parent %s %s at %s', k.status, p.id, p.status, p.finished_at) AS detail
            FROM jobs k JOIN jobs p ON p.id = k.parent_id
            WHERE k.finished_at IS NULL AND p.finished_at < now() - interval '{LATE_S} seconds'
        """,
        advice="No scheduler is running: start one. Its children are cancelled at once.",
        severity=Severity.NOTICE,
    ),
)
