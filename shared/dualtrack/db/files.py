"""Uploaded files."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import insert, select

from dualtrack.db.engine import Transaction
from dualtrack.db.rows import file_of
from dualtrack.db.tables import files
from dualtrack.domain.errors import NotFound
from dualtrack.domain.step import StoredFile


def add(tx: Transaction, *, file_id: str, tenant_id: str, filename: str, size: int, sha256: str, blob_key: str, content_type: str) -> None:
    """Record an upload whose blob is stored."""
    tx.connection.execute(
        insert(files).values(
            id=file_id, tenant_id=tenant_id, filename=filename, size=size, sha256=sha256, blob_key=blob_key, content_type=content_type
        )
    )


def get(tx: Transaction, file_id: str, *, tenant_id: str, param: str = "file_id") -> StoredFile:
    """A tenant's file. Raises `NotFound`, naming `param`."""
    row = tx.connection.execute(select(files).where(files.c.id == file_id, files.c.tenant_id == tenant_id)).one_or_none()
    if row is None:
        raise NotFound(f"There is no file {file_id!r}.", param=param)
    return file_of(row)


def page(tx: Transaction, tenant_id: str, *, limit: int, before: str | None = None) -> Sequence[StoredFile]:
    """A tenant's files, newest first."""
    statement = select(files).where(files.c.tenant_id == tenant_id)
    if before is not None:
        statement = statement.where(files.c.id < before)
    return [file_of(row) for row in tx.connection.execute(statement.order_by(files.c.id.desc()).limit(limit))]
