"""Tenants and their API keys. A key is shown once; only its SHA-256 is kept (it has 256 random bits, so no slow hash is needed)."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Final

from sqlalchemy import func, insert, or_, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from dualtrack.db.engine import Transaction
from dualtrack.db.tables import api_keys, tenants
from dualtrack.domain.errors import NotFound
from dualtrack.domain.ids import new_id

KEY_PREFIX: Final = "dt_"
DEFAULT_TENANT: Final = "default"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a request comes from."""

    key_id: str
    tenant_id: str
    limited: bool
    """Whether the key has a limit of its own on what it may use in a day."""


def ensure_tenant(tx: Transaction, name: str = DEFAULT_TENANT) -> str:
    """The id of the tenant of that name, created if missing."""
    tx.connection.execute(upsert(tenants).values(id=new_id("ten"), name=name).on_conflict_do_nothing(index_elements=["name"]))
    return str(tx.connection.execute(select(tenants.c.id).where(tenants.c.name == name)).scalar_one())


def create_key(tx: Transaction, tenant_id: str, name: str) -> str:
    """A new key in clear; it can't be shown again."""
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    tx.connection.execute(insert(api_keys).values(id=new_id("key"), tenant_id=tenant_id, name=name, prefix=key[:9], sha256=_digest(key)))
    return key


def revoke_key(tx: Transaction, key_id: str) -> None:
    """Let a key open nothing any more; routers that know it forget it within seconds. What it started goes on.

    Raises:
        NotFound: there is no such key, or it was revoked before.
    """
    live = (api_keys.c.id == key_id) & api_keys.c.revoked_at.is_(None)
    if tx.connection.execute(update(api_keys).where(live).values(revoked_at=func.now())).rowcount == 0:
        raise NotFound(f"There is no API key {key_id!r}, or it is revoked already.")


def caller(tx: Transaction, key: str) -> Caller | None:
    """Whose key it is; None for an unknown or revoked one."""
    row = tx.connection.execute(
        select(
            api_keys.c.id,
            api_keys.c.tenant_id,
            or_(api_keys.c.day_tokens.is_not(None), api_keys.c.day_cost_usd.is_not(None)).label("limited"),
        ).where(api_keys.c.sha256 == _digest(key), api_keys.c.revoked_at.is_(None))
    ).one_or_none()
    return None if row is None else Caller(row.id, row.tenant_id, row.limited)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
