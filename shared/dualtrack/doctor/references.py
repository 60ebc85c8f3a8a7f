"""What the rows refer to in the object store, gathered in tables of this transaction only: in the database's memory, not in ours."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from sqlalchemy import Connection, text

from dualtrack.domain.errors import ObjectMissing
from dualtrack.objects.blobs import BlobCorrupt, BlobStore
from dualtrack.objects.manifest import EMPTY, Entry, EntryKind, Manifest
from dualtrack.objects.manifests import Manifests
from dualtrack.objects.port import ObjectStore

PAGE: Final = 1000
UNKNOWN_SIZE: Final = -1
"""Stands for the size of an object whose row does not tell it."""

_TABLES: Final = (
    # One row for each object and size that is expected of it; the first row that refers to it stands for all.
    """CREATE TEMPORARY TABLE wanted (key text, size bigint, job_id text, subject text, PRIMARY KEY (key, size)) ON COMMIT DROP""",
    """CREATE TEMPORARY TABLE manifests (
        tenant_id text, digest text, job_id text, seq bigint, PRIMARY KEY (tenant_id, digest)) ON COMMIT DROP""",
    """CREATE TEMPORARY TABLE listed (key text PRIMARY KEY, size bigint, modified_at timestamptz) ON COMMIT DROP""",
)
_ROWS: Final = (
    "SELECT blob_key, size, NULL::text AS job_id, 'file ' || id AS subject FROM files",
    "SELECT blob_key, size, job_id, 'artifact ' || id FROM artifacts",
    f"SELECT observation_key, {UNKNOWN_SIZE}, job_id, 'observation of ' || id FROM calls WHERE observation_key IS NOT NULL",
)
_MANIFESTS: Final = (
    "SELECT tenant_id, first_workspace AS digest, id AS job_id, 0 AS seq FROM jobs WHERE first_workspace IS NOT NULL",
    "SELECT tenant_id, workspace, id AS job_id, last_seq FROM jobs WHERE workspace IS NOT NULL",
    "SELECT tenant_id, workspace, job_id, step FROM calls WHERE workspace IS NOT NULL",
    """SELECT j.tenant_id, e.data->>'workspace', e.job_id, e.seq FROM events e JOIN jobs j ON j.id = e.job_id
        WHERE e.type = 'call.finished' AND e.data->>'workspace' IS NOT NULL""",
)


def gather(connection: Connection, job_id: str | None) -> None:
    """Make the tables, and fill `wanted` and `manifests` from the rows of all jobs and files, or of one job."""
    for table in _TABLES:
        connection.execute(text(table))
    where = "" if job_id is None else " WHERE job_id = :job"
    parameters = {} if job_id is None else {"job": job_id}
    for rows in _ROWS:
        connection.execute(text(f"INSERT INTO wanted SELECT * FROM ({rows}) found{where} ON CONFLICT DO NOTHING"), parameters)
    for rows in _MANIFESTS:
        connection.execute(text(f"INSERT INTO manifests SELECT * FROM ({rows}) found{where} ON CONFLICT DO NOTHING"), parameters)


def read_manifests(connection: Connection, store: ObjectStore) -> Generator[tuple[str, str, str]]:
    """Add to `wanted` what the manifests name; (job id, digest, what is wrong) of those that can't be read.

    Raises:
        StorageUnavailable: the store can't be asked.
    """
    found = connection.execute(text("SELECT * FROM manifests ORDER BY tenant_id, job_id, seq"), execution_options={"yield_per": PAGE})
    before: tuple[str, Manifest] = ("", EMPTY)
    with found as rows:
        for row in rows:
            if row.digest == EMPTY.digest:  # needs no object
                continue
            blobs = BlobStore(store, row.tenant_id)
            try:
                # A job's snapshots differ little from one to the next: as long as the one before is held, only what is new is read.
                manifest = Manifests(blobs).read(row.digest)
            except (ObjectMissing, BlobCorrupt) as error:
                yield row.job_id, row.digest, "the manifest is missing" if isinstance(error, ObjectMissing) else error.message
                continue
            known = before[1] if before[0] == row.tenant_id else EMPTY
            wanted = [_content(blobs, row, entry) for entry in _new(manifest, known)]
            parts = {row.digest} | {chunk.place.blob for chunk in manifest.chunks}
            # Read and checked just now, so the size is what it should be.
            wanted += [_wanted(blobs, row, part, UNKNOWN_SIZE, "manifest of") for part in parts]
            connection.execute(text("INSERT INTO wanted VALUES (:key, :size, :job, :subject) ON CONFLICT DO NOTHING"), wanted)
            before = row.tenant_id, manifest


def _new(manifest: Manifest, known: Manifest) -> list[Entry]:
    """The files that a manifest has and another one has not, or not stored so."""
    if manifest.chunks:
        chunks = {chunk.sha256 for chunk in known.chunks}
        entries = [entry for chunk in manifest.chunks if chunk.sha256 not in chunks for entry in chunk.entries]
    else:
        entries = [entry for entry in manifest.entries if known.chunks or known.by_path.get(entry.path) != entry]
    return [entry for entry in entries if entry.kind is EntryKind.FILE]


def _content(blobs: BlobStore, row: Any, entry: Entry) -> dict[str, object]:  # noqa: ANN401 - a row
    if entry.pack is not None:
        return _wanted(blobs, row, entry.pack.sha256, entry.pack.size, f"pack with {entry.path!r} of")
    return _wanted(blobs, row, entry.sha256, entry.size, f"{entry.path!r} of")


def _wanted(blobs: BlobStore, row: Any, digest: str, size: int, what: str) -> dict[str, object]:  # noqa: ANN401 - a row
    return {"key": blobs.key(digest), "size": size, "job": row.job_id, "subject": f"{what} workspace {row.digest[:12]}"}
