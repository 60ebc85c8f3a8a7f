"""Promises about the object store: what rows refer to is there; what nothing refers to is told."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Final

from sqlalchemy import Connection, text

from dualtrack.db.engine import Database
from dualtrack.doctor import references
from dualtrack.doctor.check import FIRST, Check, Finding, Offender, Severity, Subject
from dualtrack.doctor.run import finding, run
from dualtrack.domain.limits import GARBAGE_S
from dualtrack.objects.manifest import EMPTY
from dualtrack.objects.port import ObjectStore

PREFIXES: Final = ("blobs/", "observations/")
"""Where the platform keeps its objects."""
MANIFESTS: Final = Check(
    name="objects.manifests",
    subject=Subject.OBJECTS,
    promise="every snapshot of a workspace that a row names can be read",
    sql="",  # the store is asked, see `references.read_manifests`
    advice="Restore the objects from a backup of the store: without them the jobs can't go on from there, nor be forked.",
)
PRESENT: Final = Check(
    name="objects.present",
    subject=Subject.OBJECTS,
    promise="every object that a row or snapshot refers to is there, with the right size",
    sql=f"""
        SELECT w.job_id, w.key AS subject,
            w.subject || CASE WHEN l.key IS NULL THEN ': missing' ELSE format(': %s bytes, not %s', l.size, w.size) END AS detail
        FROM wanted w LEFT JOIN listed l ON l.key = w.key
        WHERE l.key IS NULL OR (w.size <> {references.UNKNOWN_SIZE} AND l.size <> w.size)
    """,
    advice="Restore the objects from a backup of the store; until then what needs them fails.",
)


def referenced(in_use_s: float) -> Check:
    """The check for what nothing refers to and is older than `in_use_s` seconds."""
    return Check(
        name="objects.referenced",
        subject=Subject.OBJECTS,
        promise=f"no object that nothing refers to is older than {in_use_s / 3600:g} h",
        sql=f"""
            SELECT NULL::text AS job_id, l.key AS subject, format('%s bytes, put %s', l.size, l.modified_at) AS detail,
                l.size, l.modified_at
            FROM listed l WHERE l.modified_at < now() - make_interval(secs => {in_use_s}) AND l.key NOT LIKE '%/{EMPTY.digest}'
                AND NOT EXISTS (SELECT FROM wanted w WHERE w.key = l.key)
        """,
        advice="Left by attempts that were lost: they cost space and nothing else; `dualtrack gc` deletes them.",
        severity=Severity.NOTICE,
    )


def examine_objects(
    database: Database, store: ObjectStore, *, job_id: str | None = None, in_use_s: float = GARBAGE_S, first: int = FIRST
) -> Iterator[Finding]:
    """Whether the object store has all that the rows of one moment refer to, and, of all jobs, what nothing refers to any more.

    Reads every manifest, and the store's whole listing; of one job, asks for each object instead. The platform may be at work meanwhile.

    Raises:
        StorageUnavailable, DatabaseUnavailable: while the findings are taken.
    """
    with database.transaction() as tx:
        connection = tx.connection
        for setting in ("statement_timeout", "idle_in_transaction_session_timeout"):
            connection.execute(text(f"SET LOCAL {setting} = 0"))
        references.gather(connection, job_id)
        yield _read_manifests(connection, store, first)
        # Rows before objects: what a row refers to was stored before the row was written.
        keep(connection, listing(store) if job_id is None else _heads(connection, store))
        # References of files and of what jobs share have no job, or another's: of one job, all that was gathered is its own.
        yield run(connection, PRESENT, _count(connection, "count(DISTINCT key) FROM wanted"), job_id=None, first=first)
        if job_id is None:
            yield run(connection, referenced(in_use_s), _count(connection, "count(*) FROM listed"), job_id=None, first=first)


def _read_manifests(connection: Connection, store: ObjectStore, first: int) -> Finding:
    count, offenders = 0, []
    for job, digest, problem in references.read_manifests(connection, store):
        count += 1
        if count <= first:
            offenders.append(Offender(job, digest, problem))
    return finding(MANIFESTS, _count(connection, "count(*) FROM manifests"), count, tuple(offenders))


def listing(store: ObjectStore) -> Iterator[tuple[str, int, datetime | None]]:
    """All objects of the platform: key, size, age."""
    for prefix in PREFIXES:
        yield from ((found.key, found.size, found.modified_at) for found in store.stored(prefix))


def _heads(connection: Connection, store: ObjectStore) -> Iterator[tuple[str, int, datetime | None]]:
    """What the store says of each object that is wanted, in place of its whole listing."""
    rows = connection.execute(text("SELECT DISTINCT key FROM wanted"), execution_options={"yield_per": references.PAGE})
    for key in rows.scalars():
        info = store.head(key)
        if info is not None:
            yield info.key, info.size, None


def keep(connection: Connection, found: Iterator[tuple[str, int, datetime | None]]) -> None:
    """Write objects that the store has into the table `listed`, page by page."""
    while page := list(islice(found, references.PAGE)):
        connection.execute(
            text("INSERT INTO listed VALUES (:key, :size, :at)"), [{"key": key, "size": size, "at": at} for key, size, at in page]
        )


def _count(connection: Connection, what: str) -> int:
    return int(connection.execute(text(f"SELECT {what}")).scalar_one())
