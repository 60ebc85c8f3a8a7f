"""Idempotency keys: the same key and request give the same resource, another request a conflict."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert

from dualtrack.db.engine import Transaction
from dualtrack.db.tables import idempotency_keys
from dualtrack.domain.errors import IdempotencyMismatch


@dataclass(frozen=True, slots=True)
class RequestKey:
    """A tenant's idempotency key together with the request it came with."""

    tenant_id: str
    key: str
    fingerprint: str

    @classmethod
    def of(cls, tenant_id: str, key: str, *request: str | bytes) -> Self:
        """A key, and all that makes its request this one and no other: method, address, body."""
        digest = hashlib.sha256()
        for part in request:
            data = part.encode() if isinstance(part, str) else part
            digest.update(len(data).to_bytes(8) + data)
        return cls(tenant_id, key, digest.hexdigest())


def once(tx: Transaction, request: RequestKey | None, create: Callable[[], str]) -> tuple[str, bool]:
    """What `create` gives (the new resource's id), the first time; then the same id again, without calling it. And whether it is new.

    Of two at once the second waits for the first to be committed. Take no row lock before this in the same transaction.

    Raises:
        IdempotencyMismatch: the key was used with another request.
    """
    if request is None:
        return create(), True
    ours = (idempotency_keys.c.tenant_id == request.tenant_id) & (idempotency_keys.c.key == request.key)
    values = {"tenant_id": request.tenant_id, "key": request.key, "fingerprint": request.fingerprint, "resource_id": ""}
    statement = insert(idempotency_keys).values(values).on_conflict_do_nothing().returning(idempotency_keys.c.key)
    if tx.connection.execute(statement).one_or_none() is not None:
        resource_id = create()
        tx.connection.execute(update(idempotency_keys).where(ours).values(resource_id=resource_id))
        return resource_id, True
    row = tx.connection.execute(select(idempotency_keys).where(ours)).one()
    if row.fingerprint != request.fingerprint:
        raise IdempotencyMismatch(
            "This Idempotency-Key was used with another request: take a new key for a new request.", param="Idempotency-Key"
        )
    return str(row.resource_id), False
