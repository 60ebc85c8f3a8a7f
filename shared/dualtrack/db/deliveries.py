"""Deliveries: an outbox. A row is written in the transaction of the event that it tells of, and sent by whoever claims it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Row, case, func, insert, literal, null, select, update
from sqlalchemy.dialects.postgresql import JSONB

from dualtrack.db.engine import Transaction
from dualtrack.db.hook_tables import deliveries
from dualtrack.domain.conflicts import DeliveryUnderWay
from dualtrack.domain.errors import NotFound
from dualtrack.domain.limits import PlatformLimits
from dualtrack.domain.webhook import Delivery, DeliveryStatus, NoticeType

LOGGED: Final = 50
"""Attempts that a delivery remembers, the newest."""
LEASE_MARGIN_S: Final = 10.0
"""What a claim lasts beyond the longest attempt."""
_CLAIM_LOCK: Final = 7_245_110_633
_NOW: Final = func.clock_timestamp()


def add(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert deliveries, due at once: mappings with id, webhook_id, job_id, seq, type, body."""
    tx.connection.execute(insert(deliveries).values(due_at=func.now()), list(rows))


def due(tx: Transaction, most: int) -> int:
    """How many could be claimed now, counted up to `most`."""
    found = select(deliveries.c.id).where(deliveries.c.due_at <= _NOW).limit(most).subquery()
    return int(tx.connection.execute(select(func.count()).select_from(found)).scalar_one())


def claim(tx: Transaction, limits: PlatformLimits) -> Delivery | None:
    """Take the one that is due for longest, with the next fencing token and a lease longer than an attempt may take; None: there is none.

    An endpoint that has its share of attempts under way is left out, so that a slow one keeps nothing from the others.
    """
    tx.connection.execute(select(func.pg_advisory_xact_lock(_CLAIM_LOCK)))  # or two at once would both take the last of a share
    other = deliveries.alias()
    busy = (
        select(other.c.webhook_id)
        .where(other.c.lease_until > _NOW)
        .group_by(other.c.webhook_id)
        .having(func.count() >= limits.webhook_in_flight_each)
    )
    chosen = (
        select(deliveries.c.id)
        .where(deliveries.c.due_at <= _NOW, deliveries.c.webhook_id.not_in(busy))
        .order_by(deliveries.c.due_at)
        .limit(1)
        .with_for_update(skip_locked=True)
        .cte("chosen")
    )
    until = _NOW + timedelta(seconds=limits.webhook_timeout_s + LEASE_MARGIN_S)
    values = {"attempt": deliveries.c.attempt + 1, "tries": deliveries.c.tries + 1, "lease_until": until, "due_at": until}
    statement = update(deliveries).where(deliveries.c.id.in_(select(chosen.c.id))).values(values).returning(*deliveries.c)
    row = tx.connection.execute(statement).one_or_none()
    return None if row is None else _delivery_of(row)


def finish(tx: Transaction, delivery: Delivery, status: DeliveryStatus, entry: Mapping[str, Any]) -> bool:
    """Write the end of a claimed delivery; whether it was still this claim's."""
    return _record(tx, delivery, entry, {"status": status.value, "due_at": None, "finished_at": func.now()})


def put_off(tx: Transaction, delivery: Delivery, pause_s: float, entry: Mapping[str, Any], limits: PlatformLimits) -> bool:
    """Try again in `pause_s` seconds, or give up where that is past its time; whether it was still this claim's."""
    later = _NOW + timedelta(seconds=pause_s)
    over = later > deliveries.c.since + timedelta(seconds=limits.webhook_retry_s)
    values = {
        "status": case((over, DeliveryStatus.FAILED.value), else_=DeliveryStatus.PENDING.value),
        "due_at": case((over, null()), else_=later),
        "finished_at": case((over, func.now()), else_=null()),
    }
    return _record(tx, delivery, entry, values)


def _record(tx: Transaction, delivery: Delivery, entry: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    log = [*delivery.log, {**entry, "number": delivery.attempt}][-LOGGED:]
    ours = (deliveries.c.id == delivery.id) & (deliveries.c.attempt == delivery.attempt) & deliveries.c.lease_until.is_not(None)
    changed = {"lease_until": None, "log": literal(log, JSONB), **values}
    return tx.connection.execute(update(deliveries).where(ours).values(changed)).rowcount == 1


def redeliver(tx: Transaction, delivery_id: str) -> None:
    """Send it again from now on, with the same id, as if it were new.

    Raises:
        DeliveryUnderWay: an attempt is under way.
    """
    idle = (deliveries.c.id == delivery_id) & (deliveries.c.lease_until.is_(None) | (deliveries.c.lease_until < _NOW))
    again = {"status": DeliveryStatus.PENDING.value, "tries": 0, "due_at": func.now(), "since": func.now()}
    statement = update(deliveries).where(idle).values(again | {"lease_until": None, "finished_at": None})
    if tx.connection.execute(statement).rowcount != 1:
        raise DeliveryUnderWay("It is being sent just now: look again in a moment.")


def get(tx: Transaction, delivery_id: str, *, webhook_id: str) -> Delivery:
    """A delivery to that endpoint. Raises `NotFound`."""
    statement = select(deliveries).where(deliveries.c.id == delivery_id, deliveries.c.webhook_id == webhook_id)
    row = tx.connection.execute(statement).one_or_none()
    if row is None:
        raise NotFound(f"There is no delivery {delivery_id!r}.", param="delivery_id")
    return _delivery_of(row)


def page(
    tx: Transaction, webhook_id: str, *, limit: int, before: str | None = None, statuses: Sequence[DeliveryStatus] = ()
) -> list[Delivery]:
    """An endpoint's deliveries, newest first; `statuses`: only these, none: all."""
    statement = select(deliveries).where(deliveries.c.webhook_id == webhook_id)
    if before is not None:
        statement = statement.where(deliveries.c.id < before)
    if statuses:
        statement = statement.where(deliveries.c.status.in_([status.value for status in statuses]))
    return [_delivery_of(row) for row in tx.connection.execute(statement.order_by(deliveries.c.id.desc()).limit(limit))]


def _delivery_of(row: Row[Any]) -> Delivery:
    values = {name: getattr(row, name) for name in Delivery.__dataclass_fields__}
    return Delivery(**(values | {"type": NoticeType(row.type), "status": DeliveryStatus(row.status), "log": tuple(row.log)}))
