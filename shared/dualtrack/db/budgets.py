"""What budgets are made of: usage by key and day, limits of keys, jobs whose wait for one may be over."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from datetime import date
from decimal import Decimal
from typing import Any, Final, NamedTuple

from sqlalchemy import FromClause, Select, func, literal, select, update
from sqlalchemy.dialects.postgresql import Insert
from sqlalchemy.dialects.postgresql import insert as upsert

from dualtrack.db.engine import Transaction
from dualtrack.db.prepared import given
from dualtrack.db.rows import usage_of
from dualtrack.db.tables import USAGE_COLUMNS, api_keys, jobs, key_usage, tenants
from dualtrack.domain.budgets import KeyDay, usd
from dualtrack.domain.errors import NotFound
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.usage import Usage
from dualtrack.domain.waiting import Hold

SHARDS: Final = 16
"""Rows a key and day: of two jobs of a key that record at the same time, one waits for the other in one case of so many."""


def shard_of(job_id: str) -> int:
    """The row that a job's usage is added to."""
    return zlib.crc32(job_id.encode()) % SHARDS


def adding(key_id: str, shard: int, usage: Usage) -> Insert:
    """The statement that adds to what a key used today (UTC, as all connections are)."""
    counts = [literal(getattr(usage, name), key_usage.c[name].type) for name in USAGE_COLUMNS]
    return _adding(select(literal(key_id), func.current_date(), literal(shard), *counts))


def adding_spent(where: FromClause) -> Insert:
    """The same once for each row of `where`, with the parameters that `spent` gives."""
    counts = [given(f"spent_{name}", key_usage.c[name].type) for name in USAGE_COLUMNS]
    key, shard = given("spent_key", key_usage.c.key_id.type), given("spent_shard", key_usage.c.shard.type)
    return _adding(select(key, func.current_date(), shard, *counts).select_from(where))


def adding_all(found: FromClause) -> Insert:
    """The same for many jobs: `found` has the columns `key`, `shard` and those of usage. Rows are taken in one order by everybody."""
    whose = (found.c.key, found.c.shard)
    sums = [func.sum(found.c[name]) for name in USAGE_COLUMNS]
    row = select(found.c.key, func.current_date(), found.c.shard, *sums).where(found.c.key.is_not(None))
    return _adding(row.group_by(*whose).order_by(*whose))


def spent(key_id: str, job_id: str, usage: Usage) -> dict[str, Any]:
    """What a job of a key used, as parameters of `adding_spent`."""
    return {"spent_key": key_id, "spent_shard": shard_of(job_id)} | {f"spent_{name}": getattr(usage, name) for name in USAGE_COLUMNS}


def _adding(row: Select[Any]) -> Insert:
    statement = upsert(key_usage).from_select(["key_id", "day", "shard", *USAGE_COLUMNS], row)
    sums = {name: key_usage.c[name] + statement.excluded[name] for name in USAGE_COLUMNS}
    return statement.on_conflict_do_update(index_elements=["key_id", "day", "shard"], set_=sums)


def key_day(tx: Transaction, key_id: str, limits: PlatformLimits, *, day: date | None = None) -> KeyDay:
    """What a key used on a day (None: today, UTC), and what it may use. Raises `NotFound`."""
    on = func.current_date() if day is None else literal(day)
    sums = [func.coalesce(func.sum(key_usage.c[name]), 0).label(name) for name in USAGE_COLUMNS]
    used = (key_usage.c.key_id == api_keys.c.id) & (key_usage.c.day == on)
    row = tx.connection.execute(
        select(api_keys.c.day_tokens, api_keys.c.day_cost_usd, on.label("on_day"), *sums)
        .select_from(api_keys.outerjoin(key_usage, used))
        .where(api_keys.c.id == key_id)
        .group_by(api_keys.c.id)
    ).one_or_none()
    if row is None:
        raise NotFound(f"There is no API key {key_id!r}.", param="key")
    return KeyDay(
        key_id=key_id,
        day=row.on_day,
        usage=usage_of(row),
        tokens=limits.key_day_tokens if row.day_tokens is None else row.day_tokens,
        cost_usd=limits.key_day_cost_usd if row.day_cost_usd is None else row.day_cost_usd,
    )


def set_key_limits(tx: Transaction, key_id: str, values: Mapping[str, int | Decimal | None]) -> None:
    """Set `day_tokens`, `day_cost_usd` of a key; the scheduler looks at its waiting jobs anew. Raises `NotFound`.

    A job that is just beginning to wait is looked at as well: with `hold_limits`, which waits for this transaction.
    """
    if tx.connection.execute(update(api_keys).where(api_keys.c.id == key_id).values(dict(values))).rowcount != 1:
        raise NotFound(f"There is no API key {key_id!r}.", param="key")
    waiting = (jobs.c.key_id == key_id, jobs.c.waiting_since.is_not(None), jobs.c.not_before.is_not(None))
    tx.connection.execute(update(jobs).where(*waiting).values(not_before=func.now()))


def hold_limits(tx: Transaction, key_id: str) -> None:
    """Let nobody change a key's limits until the end of the transaction. To be taken before any job's row, as `set_key_limits` does."""
    tx.connection.execute(select(api_keys.c.id).where(api_keys.c.id == key_id).with_for_update(read=True))


def keys(tx: Transaction) -> list[dict[str, Any]]:
    """All keys that are not revoked, oldest first: id, tenant, name, prefix, limits (None: the operator's default), use of today (UTC)."""
    used = (key_usage.c.key_id == api_keys.c.id) & (key_usage.c.day == func.current_date())
    tokens = func.coalesce(func.sum(key_usage.c.input_tokens + key_usage.c.output_tokens), 0)
    cost = func.coalesce(func.sum(key_usage.c.cost_usd), 0)
    rows = tx.connection.execute(
        select(api_keys, tenants.c.name.label("tenant"), tokens.label("tokens_today"), cost.label("cost_usd_today"))
        .select_from(api_keys.join(tenants).outerjoin(key_usage, used))
        .where(api_keys.c.revoked_at.is_(None))
        .group_by(api_keys.c.id, tenants.c.name)
        .order_by(api_keys.c.id)
    )
    return [
        {name: getattr(row, name) for name in ("id", "tenant", "name", "prefix", "day_tokens")}
        | {
            "day_cost_usd": None if row.day_cost_usd is None else usd(row.day_cost_usd),
            "tokens_today": int(row.tokens_today),
            "cost_usd_today": usd(row.cost_usd_today),
        }
        for row in rows
    ]


class Over(NamedTuple):
    """A job whose wait for a budget may be over."""

    job_id: str
    key_id: str | None


def over(tx: Transaction, limit: int, but: Collection[str]) -> list[Over]:
    """Jobs whose wait for a budget may be over, the longest overdue first."""
    waiting = (jobs.c.waiting_until.is_not(None), jobs.c.not_before <= func.now(), jobs.c.hold == Hold.BUDGET)
    statement = select(jobs.c.id, jobs.c.key_id).where(*waiting, jobs.c.id.not_in(but))
    return [Over(*row) for row in tx.connection.execute(statement.order_by(jobs.c.not_before).limit(limit))]


def time_over(tx: Transaction, job_id: str) -> bool:
    """Whether a job's wall time is used up; while it waits its clock stands still."""
    reached = jobs.c.deadline_at <= func.coalesce(jobs.c.waiting_since, func.now())
    return bool(tx.connection.execute(select(reached).where(jobs.c.id == job_id)).scalar_one())
