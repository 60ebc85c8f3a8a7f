"""Requests to people: written once, decided once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Row, ScalarSelect, Select, func, insert, select, update
from sqlalchemy.sql.base import Executable

from dualtrack.db.engine import Transaction
from dualtrack.db.prepared import Prepared, given
from dualtrack.db.tables import api_keys, approvals
from dualtrack.domain.approval import Approval, Resolution
from dualtrack.domain.errors import NotFound
from dualtrack.domain.step import Call
from dualtrack.domain.waiting import ApprovalKind, ApprovalStatus

_SHOWN_CHARS: Final = 64


def create(tx: Transaction, values: Mapping[str, Any], *, expires_s: float) -> Approval:
    """Insert a pending request; a second one for the same call is refused by an index."""
    expires = func.now() + timedelta(seconds=expires_s)
    tx.connection.execute(insert(approvals).values(**values, status=ApprovalStatus.PENDING.value, expires_at=expires))
    return get(tx, values["id"])


def get(tx: Transaction, approval_id: str, *, tenant_id: str | None = None) -> Approval:
    """One request; within a tenant where one is given. Raises `NotFound`: there is none, or it is another tenant's."""
    statement = _select().where(approvals.c.id == approval_id)
    if tenant_id is not None:
        statement = statement.where(approvals.c.tenant_id == tenant_id)
    row = tx.connection.execute(statement).one_or_none()
    if row is None:
        raise NotFound(f"There is no approval {approval_id[:_SHOWN_CHARS]!r}.", param="approval_id")
    return _approval(row)


def page(
    tx: Transaction,
    tenant_id: str,
    *,
    limit: int,
    before: str | None = None,
    job_id: str | None = None,
    statuses: Sequence[ApprovalStatus] = (),
) -> list[Approval]:
    """A tenant's requests, newest first, those made before the request `before`, filtered."""
    statement = _select().where(approvals.c.tenant_id == tenant_id)
    if before is not None:
        statement = statement.where(approvals.c.id < before)
    if job_id is not None:
        statement = statement.where(approvals.c.job_id == job_id)
    if statuses:
        statement = statement.where(approvals.c.status.in_([status.value for status in statuses]))
    return [_approval(row) for row in tx.connection.execute(statement.order_by(approvals.c.id.desc()).limit(limit))]


def of_call(tx: Transaction, call_id: str, job_id: str) -> list[Approval]:
    """All requests about one call of a job."""
    statement = _select().where(approvals.c.job_id == job_id, approvals.c.call_id == call_id)
    return [_approval(row) for row in tx.connection.execute(statement.order_by(approvals.c.id))]


def permits(tx: Transaction, call: Call) -> bool:
    """Whether a call may run as far as people are concerned: it needs no approval, or has one for its tool and exactly its arguments."""
    return not call.guarded or any(found.permits(call.tool, call.arguments) for found in of_call(tx, call.id, call.job_id))


def decide(tx: Transaction, approval_id: str, status: ApprovalStatus, *, by: str, **values: Any) -> Approval:  # noqa: ANN401 - columns
    """Write a pending request's end (the job's row locked); as it stands then, decided by whoever was first."""
    changes = {"status": status.value, "decided_by": by, "decided_at": func.now(), **values}
    pending = (approvals.c.id == approval_id) & (approvals.c.status == ApprovalStatus.PENDING)
    tx.connection.execute(update(approvals).where(pending).values(changes))
    return get(tx, approval_id)


def withdraw(tx: Transaction, job_id: str, *, by: str) -> list[tuple[str, str]]:
    """End what is pending of a job that ends: (id, call) of each."""
    return sorted((row.id, row.call_id) for row in _WITHDRAW.run(tx, {"job": job_id, "who": by}))


def _withdraw() -> Executable:
    pending = (approvals.c.job_id == given("job")) & (approvals.c.status == ApprovalStatus.PENDING.value)
    changes = {"status": ApprovalStatus.WITHDRAWN.value, "decided_by": given("who"), "decided_at": func.now()}
    return update(approvals).where(pending).values(changes).returning(approvals.c.id, approvals.c.call_id)


_WITHDRAW: Final = Prepared(_withdraw)


def pending(tx: Transaction, job_id: str) -> list[Approval]:
    """What a job asks for just now."""
    statement = _select().where(approvals.c.job_id == job_id, approvals.c.status == ApprovalStatus.PENDING)
    return [_approval(row) for row in tx.connection.execute(statement.order_by(approvals.c.id))]


def jobs_with_lapsed(tx: Transaction, limit: int, but: Collection[str]) -> list[str]:
    """Ids of jobs with pending requests whose time is over, at most `limit`, the longest overdue first."""
    late = (approvals.c.status == ApprovalStatus.PENDING) & (approvals.c.expires_at <= func.now())
    statement = (
        select(approvals.c.job_id)
        .where(late, approvals.c.job_id.not_in(but))
        .group_by(approvals.c.job_id)
        .order_by(func.min(approvals.c.expires_at))
    )
    return list(tx.connection.execute(statement.limit(limit)).scalars())


def last_expiry(job_id: str) -> ScalarSelect[Any]:
    """When the last pending request of a job runs out, as part of another statement; null where there is none."""
    pending = (approvals.c.job_id == job_id) & (approvals.c.status == ApprovalStatus.PENDING)
    return select(func.max(approvals.c.expires_at)).where(pending).scalar_subquery()


def _select() -> Select[Any]:
    lapsed = (approvals.c.expires_at <= func.clock_timestamp()).label("lapsed")
    joined = approvals.outerjoin(api_keys, api_keys.c.id == approvals.c.decided_by)
    return select(approvals, lapsed, api_keys.c.name.label("decided_by_name")).select_from(joined)


def _approval(row: Row[Any]) -> Approval:
    values = {name: getattr(row, name) for name in Approval.__dataclass_fields__}
    values |= {"kind": ApprovalKind(row.kind), "status": ApprovalStatus(row.status)}
    return Approval(**values | {"outcome": Resolution(row.outcome) if row.outcome else None})
