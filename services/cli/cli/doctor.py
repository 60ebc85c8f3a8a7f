"""`dualtrack doctor`: the platform's promises, checked on its database and object store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import backend
from cli.outcome import Exit
from cli.session import Session, command

if TYPE_CHECKING:
    from dualtrack.doctor.check import Finding


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "doctor")(doctor)
    command(app, "gc")(collect)


def doctor(
    session: Session,
    job: Annotated[str | None, typer.Option("--job", metavar="ID", help="Only what belongs to this job.")] = None,
    objects: Annotated[bool, typer.Option(help="Look into the object store as well (reads its whole listing).")] = True,
) -> int:
    """Check that nothing was lost, done twice or left stuck; exit status 1 where a promise is broken.

    Needs the database and object store of the settings, or the standalone platform's directory. Changes nothing; the platform may be
    at work meanwhile.
    """
    found = []
    with backend.database(session) as database:
        from dualtrack.db.migrate import require_current
        from dualtrack.doctor.examination import examine
        from dualtrack.doctor.objects import examine_objects

        require_current(database)
        rows = examine(database, job_id=job)
        for finding in chain(rows, examine_objects(database, backend.objects(session), job_id=job)) if objects else rows:
            found.append(finding)
            if not session.as_json:
                for line in _lines(finding):
                    session.out.text(line)
    broken = [finding for finding in found if not finding.holds and finding.severity == "violation"]
    if session.as_json:
        session.out.document({"object": "examination", "job_id": job, "ok": not broken, "checks": [_as_json(finding) for finding in found]})
    else:
        session.out.text("All promises hold." if not broken else f"{len(broken)} of {len(found)} promises are broken.")
    return Exit.JOB_FAILED if broken else Exit.OK


def _lines(finding: Finding) -> Iterator[str]:
    """One line, and for what does not hold the first offenders and what to do."""
    looked_at = f"{finding.looked_at:,} {finding.subject}"
    if finding.holds:
        yield f"ok      {finding.name:<20} {looked_at}: {finding.promise}"
        return
    word = "BROKEN" if finding.severity == "violation" else "note"
    yield f"{word:<7} {finding.name:<20} {finding.count:,} of {looked_at} break this: {finding.promise}"
    for offender in finding.first:
        of_job = f" of {offender.job_id}" if offender.job_id not in {None, offender.subject} else ""
        yield f"          {offender.subject}{of_job}: {offender.detail}"
    if finding.count > len(finding.first):
        yield f"          and {finding.count - len(finding.first):,} more"
    yield f"        {finding.advice}"


def _as_json(finding: Finding) -> Mapping[str, Any]:
    return {
        "name": finding.name,
        "promise": finding.promise,
        "severity": finding.severity.value,
        "subject": finding.subject.value,
        "looked_at": finding.looked_at,
        "violations": finding.count,
        "first": [{"job_id": item.job_id, "subject": item.subject, "detail": item.detail} for item in finding.first],
        "advice": None if finding.holds else finding.advice,
    }


def collect(
    session: Session,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be deleted.")] = False,
) -> None:
    """Delete what nobody will ask for, while the platform may be at work: objects that nothing has referred to for a day, idempotency keys
    and deliveries of a tenant's webhooks older than 30 days.
    """
    with backend.database(session) as database:
        from dualtrack.db.migrate import require_current
        from dualtrack.doctor.garbage import collect

        require_current(database)
        found = collect(database, backend.objects(session), dry_run=dry_run)
    if session.as_json:
        session.out.document({"object": "garbage", "deleted": not dry_run, **asdict(found)})
        return
    word = "would be deleted" if dry_run else "deleted"
    rows = f"{found.idempotency_keys:,} idempotency keys and {found.deliveries:,} deliveries"
    session.out.text(f"{found.objects:,} objects ({found.bytes:,} bytes), {rows} {word}.")
