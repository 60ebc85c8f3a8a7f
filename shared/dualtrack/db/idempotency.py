"""Idempotency keys: the same key and request give the same resource, another request a conflict."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from sqlalchemy import ColumnElement, Row, select, update
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


def made(tx: Transaction, request: RequestKey) -> str | None:
    """The id of what the key's request made; None: the key was not used yet, so far as is committed.

    Asked before anything is checked, since what could be made once may be refused today. `once` still decides.

    Raises:
        IdempotencyMismatch: the key was used with another request.
    """
    row = tx.connection.execute(select(idempotency_keys).where(_ours(request))).one_or_none()
    return None if row is None else _same(row, request)


def once(tx: Transaction, request: RequestKey | None, create: Callable[[], str]) -> tuple[str, bool]:
    """What `create` gives (the new resource's id), the first time; then the same id again, without calling it. And whether it is new.

    Of two at once the second waits for the first to be committed. Take no row lock before this in the same transaction.

    Raises:
        IdempotencyMismatch: the key was used with another request.
    """
    if request is None:
        return create(), True
    values = {"tenant_id": request.tenant_id, "key": request.key, "fingerprint": request.fingerprint, "resource_id": ""}
    statement = insert(idempotency_keys).values(values).on_conflict_do_nothing().returning(idempotency_keys.c.key)
    if tx.connection.execute(statement).one_or_none() is not None:
        resource_id = create()
        tx.connection.execute(update(idempotency_keys).where(_ours(request)).values(resource_id=resource_id))
        return resource_id, True
    return _same(tx.connection.execute(select(idempotency_keys).where(_ours(request))).one(), request), False


def _ours(request: RequestKey) -> ColumnElement[bool]:
    return (idempotency_keys.c.tenant_id == request.tenant_id) & (idempotency_keys.c.key == request.key)


def _same(row: Row[Any], request: RequestKey) -> str:
    """The resource of the row, where its request is this one."""
    if row.fingerprint != request.fingerprint:
        raise IdempotencyMismatch(
            "This Idempotency-Key was used with another request: take a new key for a new request.", param="Idempotency-Key"
        )
    return str(row.resource_id)
