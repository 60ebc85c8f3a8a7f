"""Running one check on a connection."""

from __future__ import annotations

from sqlalchemy import Connection, text

from dualtrack.doctor.check import Check, Finding, Offender


def run(connection: Connection, check: Check, looked_at: int, *, job_id: str | None, first: int) -> Finding:
    """What the check finds, of all jobs or of one; `looked_at` is how many of its subject there are. The server does the counting."""
    where = "" if job_id is None else " WHERE job_id = :job"
    found = f"SELECT job_id, subject, detail FROM ({check.sql}) offenders{where}"
    statement = text(f"WITH found AS MATERIALIZED ({found}) SELECT *, (SELECT count(*) FROM found) AS total FROM found LIMIT :first")
    parameters: dict[str, object] = {"first": first} | ({} if job_id is None else {"job": job_id})
    rows = connection.execute(statement, parameters).all()
    offenders = tuple(Offender(row.job_id, row.subject, row.detail) for row in rows)
    return finding(check, looked_at, rows[0].total if rows else 0, offenders)


def finding(check: Check, looked_at: int, count: int, first: tuple[Offender, ...]) -> Finding:
    """A check with what it found."""
    return Finding(check.name, check.subject, check.promise, check.advice, check.severity, looked_at, count, first)
