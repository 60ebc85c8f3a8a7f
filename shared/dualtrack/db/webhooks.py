"""Webhook endpoints: a tenant's own, and those that came with a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Row, delete, func, insert, or_, select, update
from sqlalchemy.sql.base import Executable

from dualtrack.db.engine import Transaction
from dualtrack.db.hook_tables import deliveries, webhooks
from dualtrack.db.prepared import Prepared, given
from dualtrack.db.tables import jobs
from dualtrack.db.usual import ids, joined
from dualtrack.domain.errors import NotFound
from dualtrack.domain.webhook import NoticeType, Webhook


def add(
    tx: Transaction,
    *,
    webhook_id: str,
    tenant_id: str,
    url: str,
    events: Sequence[NoticeType],
    secret: str,
    description: str = "",
    job_id: str | None = None,
) -> None:
    """Insert an endpoint; `secret` as it is to be stored."""
    tx.connection.execute(
        insert(webhooks).values(
            id=webhook_id,
            tenant_id=tenant_id,
            job_id=job_id,
            url=url,
            events=[kind.value for kind in events],
            description=description,
            secret=secret,
        )
    )


def get(tx: Transaction, webhook_id: str, *, tenant_id: str | None = None, lock: bool = False) -> Webhook:
    """An endpoint; within a tenant where one is given. Raises `NotFound`."""
    statement = select(webhooks).where(webhooks.c.id == webhook_id)
    if tenant_id is not None:
        statement = statement.where(webhooks.c.tenant_id == tenant_id)
    if lock:
        statement = statement.with_for_update()
    row = tx.connection.execute(statement).one_or_none()
    if row is None:
        raise NotFound(f"There is no webhook {webhook_id!r}.", param="webhook_id")
    return _webhook_of(row)


def of_job(tx: Transaction, job_id: str, tenant_id: str) -> Webhook | None:
    """The endpoint that came with a job."""
    row = tx.connection.execute(select(webhooks).where(webhooks.c.job_id == job_id, webhooks.c.tenant_id == tenant_id)).one_or_none()
    return None if row is None else _webhook_of(row)


def copy(tx: Transaction, webhook: Webhook, *, webhook_id: str, job_id: str) -> None:
    """Give a job an endpoint that is as another one stands: where it is, what it wants to hear, its secrets, whether it is disabled."""
    kept = ("tenant_id", "url", "description", "secret", "previous_secret", "previous_until", "disabled_at", "disabled_reason")
    values = {name: getattr(webhook, name) for name in kept} | {"events": [kind.value for kind in webhook.events]}
    tx.connection.execute(insert(webhooks).values(values | {"id": webhook_id, "job_id": job_id}))


def page(tx: Transaction, tenant_id: str, *, limit: int, before: str | None = None) -> list[Webhook]:
    """A tenant's own endpoints, newest first."""
    statement = select(webhooks).where(webhooks.c.tenant_id == tenant_id, webhooks.c.job_id.is_(None))
    if before is not None:
        statement = statement.where(webhooks.c.id < before)
    return [_webhook_of(row) for row in tx.connection.execute(statement.order_by(webhooks.c.id.desc()).limit(limit))]


def count(tx: Transaction, tenant_id: str) -> int:
    """How many a tenant has of its own."""
    statement = select(func.count()).select_from(webhooks).where(webhooks.c.tenant_id == tenant_id, webhooks.c.job_id.is_(None))
    return int(tx.connection.execute(statement).scalar_one())


def listening(tx: Transaction, job_id: str, kinds: Sequence[NoticeType]) -> list[Row[Any]]:
    """Endpoints that want to hear one of these of a job (`id`, `events`), each with what a body says of the job.

    They can't be removed before this transaction ends.
    """
    return list(_LISTENING.run(tx, {"job": job_id, "kinds": joined(kind.value for kind in kinds)}))


def _listening() -> Executable:
    theirs = or_((webhooks.c.tenant_id == jobs.c.tenant_id) & webhooks.c.job_id.is_(None), webhooks.c.job_id == jobs.c.id)
    return (
        select(webhooks.c.id, webhooks.c.events, jobs.c.status, jobs.c.agent_name, jobs.c.metadata, jobs.c.parent_id)
        .join_from(jobs, webhooks, theirs)
        .where(jobs.c.id == given("job"), webhooks.c.disabled_at.is_(None), webhooks.c.events.has_any(ids("kinds")))
        .with_for_update(of=webhooks, read=True, key_share=True)
    )


_LISTENING: Final = Prepared(_listening)


def change(tx: Transaction, webhook_id: str, values: Mapping[str, Any]) -> None:
    """Change columns; when it is to be told something else from now on, that is kept."""
    told = {"changed_at": func.clock_timestamp()} if values.keys() & {"events", "disabled_at"} else {}
    tx.connection.execute(update(webhooks).where(webhooks.c.id == webhook_id).values({**values, **told}))


def rotate(tx: Transaction, webhook: Webhook, secret: str, overlap_s: float) -> None:
    """Sign with a new secret (as it is to be stored), and with the old one too for `overlap_s` seconds."""
    until = func.now() + timedelta(seconds=overlap_s)
    change(tx, webhook.id, {"secret": secret, "previous_secret": webhook.secret, "previous_until": until})


def secrets(tx: Transaction, after: str, limit: int) -> dict[str, dict[str, str]]:
    """Secrets as stored, by column, of the first `limit` endpoints after an id, their rows locked."""
    columns = ("secret", "previous_secret")
    statement = select(webhooks.c.id, *(webhooks.c[name] for name in columns)).where(webhooks.c.id > after)
    rows = tx.connection.execute(statement.order_by(webhooks.c.id).limit(limit).with_for_update())
    return {row.id: {name: getattr(row, name) for name in columns if getattr(row, name) is not None} for row in rows}


def disable(tx: Transaction, webhook_id: str, reason: str) -> None:
    """Tell it nothing more; what is under way to it fails at its next attempt, which comes at once."""
    statement = update(webhooks).where(webhooks.c.id == webhook_id, webhooks.c.disabled_at.is_(None))
    tx.connection.execute(statement.values(disabled_at=func.now(), disabled_reason=reason))
    waiting = (deliveries.c.webhook_id == webhook_id) & deliveries.c.due_at.is_not(None) & deliveries.c.lease_until.is_(None)
    tx.connection.execute(update(deliveries).where(waiting).values(due_at=func.now()))


def remove(tx: Transaction, webhook_id: str) -> None:
    """Delete an endpoint with all its deliveries."""
    tx.connection.execute(delete(webhooks).where(webhooks.c.id == webhook_id))


def _kinds(names: Sequence[str]) -> tuple[NoticeType, ...]:
    return tuple(kind for kind in NoticeType if kind.value in names)  # a newer release may have written more


def _webhook_of(row: Row[Any]) -> Webhook:
    values = {name: getattr(row, name) for name in Webhook.__dataclass_fields__}
    return Webhook(**(values | {"events": _kinds(row.events)}))
