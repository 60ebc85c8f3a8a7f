"""Idempotency keys: the same key and body give the same resource, another body a conflict."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert

from dualtrack.db.engine import Transaction
from dualtrack.db.tables import idempotency_keys
from dualtrack.domain.errors import IdempotencyMismatch


def reserve(tx: Transaction, *, tenant_id: str, key: str, fingerprint: str, resource_id: str) -> str:
    """Bind `key` to `resource_id`, or give the resource it was bound to before.

    Waits for a transaction that is just binding the same key. The caller creates the resource in this same transaction
    when its own id comes back.

    Raises:
        IdempotencyMismatch: the key was used with another request.
    """
    values = {"tenant_id": tenant_id, "key": key, "fingerprint": fingerprint, "resource_id": resource_id}
    tx.connection.execute(insert(idempotency_keys).values(values).on_conflict_do_nothing())
    row = tx.connection.execute(
        select(idempotency_keys).where(idempotency_keys.c.tenant_id == tenant_id, idempotency_keys.c.key == key)
    ).one()
    if row.fingerprint != fingerprint:
        raise IdempotencyMismatch(
            "This Idempotency-Key was used with another request: take a new key for a new request.", param="Idempotency-Key"
        )
    return str(row.resource_id)
