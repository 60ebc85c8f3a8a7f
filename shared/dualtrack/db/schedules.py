"""Schedules and their times. The database's clock decides what is due: a scheduler's own may be wrong."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import ValidationError
from sqlalchemy import ColumnElement, Row, Text, and_, cast, delete, exists, func, insert, literal_column, or_, select, union, update
from sqlalchemy.dialects.postgresql import ARRAY

from dualtrack.db import claims
from dualtrack.db.engine import Transaction
from dualtrack.db.hook_tables import schedule_runs, schedules
from dualtrack.db.tables import jobs
from dualtrack.domain.errors import NotFound, RecordUnreadable
from dualtrack.domain.job import JobSpec
from dualtrack.domain.limits import STORED, PlatformLimits
from dualtrack.domain.schedule import CatchUp, Overlap, RunOutcome, Schedule, ScheduleRun

_NO_INPUTS: Final[ColumnElement[Any]] = literal_column("'[]'::jsonb")
_SOON: Final = timedelta(seconds=1)
_NO_WEBHOOK: Final[ColumnElement[Any]] = literal_column("'null'::jsonb")


def add(tx: Transaction, values: Mapping[str, Any]) -> None:
    """Insert a schedule: a mapping of its columns, `spec` as JSON, its webhook's secret in it as it is to be stored."""
    tx.connection.execute(insert(schedules).values(dict(values)))


def get(tx: Transaction, schedule_id: str, *, tenant_id: str, lock: bool = False) -> Schedule:
    """A tenant's schedule. Raises `NotFound`, `RecordUnreadable`."""
    statement = select(schedules).where(schedules.c.id == schedule_id, schedules.c.tenant_id == tenant_id)
    row = tx.connection.execute(statement.with_for_update() if lock else statement).one_or_none()
    if row is None:
        raise NotFound(f"There is no schedule {schedule_id!r}.", param="schedule_id")
    return _schedule_of(row)


def page(tx: Transaction, tenant_id: str, *, limit: int, before: str | None = None) -> list[Schedule]:
    """A tenant's schedules, newest first."""
    statement = select(schedules).where(schedules.c.tenant_id == tenant_id)
    if before is not None:
        statement = statement.where(schedules.c.id < before)
    return [_schedule_of(row) for row in tx.connection.execute(statement.order_by(schedules.c.id.desc()).limit(limit))]


def count(tx: Transaction, tenant_id: str) -> int:
    """How many a tenant has."""
    return int(tx.connection.execute(select(func.count()).select_from(schedules).where(schedules.c.tenant_id == tenant_id)).scalar_one())


def change(tx: Transaction, schedule_id: str, values: Mapping[str, Any]) -> None:
    """Change columns; what is due of it is looked at anew."""
    anew = {"look_at": None, "looks": 0}
    tx.connection.execute(update(schedules).where(schedules.c.id == schedule_id).values({**values, **anew}))


def remove(tx: Transaction, schedule_id: str) -> None:
    """Delete a schedule and its history; its jobs stay."""
    tx.connection.execute(delete(schedules).where(schedules.c.id == schedule_id))


def due(tx: Transaction, most: int, *, outside: bool, busy: Collection[str] = ()) -> list[str]:
    """Ids of those of which a time has come, or a queued one's turn: new ones first, then those left alone for longest.

    Args:
        tx: a transaction.
        most: at most so many.
        outside: those whose job's inputs are in the object store, or whose webhook's address is to be looked up; else those of which
            neither is so.
        busy: not these.
    """
    has_queued = exists().where(schedule_runs.c.schedule_id == schedules.c.id, schedule_runs.c.outcome == RunOutcome.QUEUED.value)
    come = select(schedules.c.id).where(schedules.c.next_at <= func.clock_timestamp())
    ready = select(schedules.c.id).where(has_queued, ~_live(schedules.c.id), ~schedules.c.paused)
    free = or_(schedules.c.look_at.is_(None), schedules.c.look_at <= func.clock_timestamp())
    inputs, webhook = schedules.c.spec["inputs"], schedules.c.spec["webhook"]
    inside = and_(func.coalesce(inputs, _NO_INPUTS) == _NO_INPUTS, func.coalesce(webhook, _NO_WEBHOOK) == _NO_WEBHOOK)
    mine = (schedules.c.id.in_(union(come, ready)), free, ~inside if outside else inside, schedules.c.id.not_in(busy))
    statement = select(schedules.c.id).where(*mine).order_by(schedules.c.look_at.nulls_first(), schedules.c.next_at)
    return list(tx.connection.execute(statement.limit(most)).scalars())


def put_off(tx: Transaction, schedule_id: str, limits: PlatformLimits) -> None:
    """Leave what is due of one alone for a while: it could not be done. Longer each time."""
    later = func.clock_timestamp() + claims.pause_after(schedules.c.looks, limits)
    values = {"look_at": later, "looks": func.least(schedules.c.looks + 1, 10)}
    tx.connection.execute(update(schedules).where(_unheld(schedule_id)).values(values))


def put_back(tx: Transaction, schedule_id: str) -> None:
    """Let one of which nothing could be done just now (somebody else is at it) be looked at again soon, after the others."""
    values = {"look_at": func.clock_timestamp() + _SOON, "looks": 0}
    tx.connection.execute(update(schedules).where(_unheld(schedule_id)).values(values))


def _unheld(schedule_id: str) -> ColumnElement[bool]:
    """That row, unless somebody holds it: whoever changes it lets it be looked at anew, and no tick waits for him."""
    return schedules.c.id.in_(select(schedules.c.id).where(schedules.c.id == schedule_id).with_for_update(skip_locked=True))


def claim(tx: Transaction, schedule_id: str) -> Schedule | None:
    """A schedule with its row locked, without waiting: None where another scheduler is at it, or it is gone. Raises `RecordUnreadable`."""
    row = tx.connection.execute(select(schedules).where(schedules.c.id == schedule_id).with_for_update(skip_locked=True)).one_or_none()
    return None if row is None else _schedule_of(row)


def look(tx: Transaction, schedule_id: str) -> Schedule | None:
    """A schedule as it stands, not locked; None where it is gone. Raises `RecordUnreadable`."""
    row = tx.connection.execute(select(schedules).where(schedules.c.id == schedule_id)).one_or_none()
    return None if row is None else _schedule_of(row)


def _live(schedule_id: Any) -> Any:  # noqa: ANN401 - a column or a value
    run = schedule_runs.alias()
    return exists().where(run.c.schedule_id == schedule_id, run.c.job_id == jobs.c.id, jobs.c.finished_at.is_(None))


def live_jobs(tx: Transaction, schedule_id: str, before: datetime, *, most: int) -> list[str]:
    """Ids of live jobs of a schedule's times before that one, at most `most`: it may have been run by hand any number of times."""
    statement = select(jobs.c.id).join(schedule_runs, schedule_runs.c.job_id == jobs.c.id)
    mine = (schedule_runs.c.schedule_id == schedule_id) & (schedule_runs.c.tick_at < before)
    return list(tx.connection.execute(statement.where(mine, jobs.c.finished_at.is_(None)).limit(most)).scalars())


def queued(tx: Transaction, schedule_id: str) -> int:
    """How many times wait."""
    mine = (schedule_runs.c.schedule_id == schedule_id) & (schedule_runs.c.outcome == RunOutcome.QUEUED.value)
    return int(tx.connection.execute(select(func.count()).select_from(schedule_runs).where(mine)).scalar_one())


def record(
    tx: Transaction,
    schedule_id: str,
    tick_at: datetime,
    outcome: RunOutcome,
    *,
    job_id: str | None = None,
    missed: int = 0,
    manual: bool = False,
    message: str | None = None,
) -> None:
    """Write what became of a time. The database refuses a second record of the same one."""
    values = {"outcome": outcome.value, "job_id": job_id, "missed": missed, "manual": manual, "message": message}
    tx.connection.execute(insert(schedule_runs).values(schedule_id=schedule_id, tick_at=tick_at, **values))


def recorded(tx: Transaction, schedule_id: str, tick_at: datetime) -> bool:
    """Whether it is written what became of a time."""
    mine = (schedule_runs.c.schedule_id == schedule_id) & (schedule_runs.c.tick_at == tick_at)
    return bool(tx.connection.execute(select(exists().where(mine))).scalar_one())


def next_queued(tx: Transaction, schedule_id: str) -> datetime | None:
    """The time that waits for longest."""
    mine = (schedule_runs.c.schedule_id == schedule_id) & (schedule_runs.c.outcome == RunOutcome.QUEUED.value)
    found: datetime | None = tx.connection.execute(select(func.min(schedule_runs.c.tick_at)).where(mine)).scalar_one()
    return found


def settle(tx: Transaction, schedule_id: str, tick_at: datetime, outcome: RunOutcome, *, job_id: str | None, message: str | None) -> None:
    """Write what became of a time that waited."""
    mine = (schedule_runs.c.schedule_id == schedule_id) & (schedule_runs.c.tick_at == tick_at)
    tx.connection.execute(update(schedule_runs).where(mine).values(outcome=outcome.value, job_id=job_id, message=message))


def give_up_queued(tx: Transaction, schedule_id: str, message: str) -> None:
    """Let the times that wait be skipped."""
    waiting = (schedule_runs.c.schedule_id == schedule_id) & (schedule_runs.c.outcome == RunOutcome.QUEUED.value)
    tx.connection.execute(update(schedule_runs).where(waiting).values(outcome=RunOutcome.SKIPPED.value, message=message))


def forget(tx: Transaction, schedule_id: str, keep: int) -> None:
    """Drop all but the newest `keep` times of a history, and those that wait or whose job is live."""
    mine = schedule_runs.c.schedule_id == schedule_id
    edge = select(schedule_runs.c.tick_at).where(mine).order_by(schedule_runs.c.tick_at.desc()).offset(keep).limit(1).scalar_subquery()
    alive = exists().where(jobs.c.id == schedule_runs.c.job_id, jobs.c.finished_at.is_(None))
    idle = (schedule_runs.c.outcome != RunOutcome.QUEUED.value) & ~alive
    tx.connection.execute(delete(schedule_runs).where(mine, schedule_runs.c.tick_at <= edge, idle))


def runs(tx: Transaction, schedule_id: str, *, limit: int, before: datetime | None = None) -> list[ScheduleRun]:
    """A schedule's times, newest first."""
    statement = select(schedule_runs).where(schedule_runs.c.schedule_id == schedule_id)
    if before is not None:
        statement = statement.where(schedule_runs.c.tick_at < before)
    return [_run_of(row) for row in tx.connection.execute(statement.order_by(schedule_runs.c.tick_at.desc()).limit(limit))]


def run_of_job(tx: Transaction, job_id: str, schedule_id: str) -> ScheduleRun:
    """The time that a job was started for. Raises `NotFound`."""
    mine = (schedule_runs.c.job_id == job_id) & (schedule_runs.c.schedule_id == schedule_id)
    row = tx.connection.execute(select(schedule_runs).where(mine)).one_or_none()
    if row is None:
        raise NotFound("The run is not in the schedule's history any more.", param="schedule_id")
    return _run_of(row)


def secrets(tx: Transaction, after: str, limit: int) -> dict[str, dict[str, str]]:
    """Secrets as stored of the first `limit` schedules after an id that have one, their rows locked."""
    secret = schedules.c.spec["webhook"]["secret"].as_string()
    statement = select(schedules.c.id, secret.label("secret")).where(schedules.c.id > after, secret.is_not(None))
    rows = tx.connection.execute(statement.order_by(schedules.c.id).limit(limit).with_for_update())
    return {row.id: {"secret": row.secret} for row in rows}


def keep_secret(tx: Transaction, schedule_id: str, values: Mapping[str, Any]) -> None:
    """Store `secret` anew for a schedule that has one."""
    place, secret = cast(["webhook", "secret"], ARRAY(Text())), func.to_jsonb(cast(values["secret"], Text()))
    change(tx, schedule_id, {"spec": func.jsonb_set(schedules.c.spec, place, secret)})


def _schedule_of(row: Row[Any]) -> Schedule:
    webhook = row.spec.get("webhook")
    secret = webhook.get("secret") if isinstance(webhook, dict) else None
    record = row.spec if secret is None else {**row.spec, "webhook": {**webhook, "secret": None}}
    try:
        spec = JobSpec.model_validate(record, extra="ignore", context=STORED)  # a newer release may have written more fields
    except ValidationError as error:
        raise RecordUnreadable(f"Schedule {row.id} can't be read by this release: {error.errors()[0]['msg']}.") from error
    values = {name: getattr(row, name) for name in Schedule.__dataclass_fields__ if name not in {"spec", "secret"}}
    return Schedule(**(values | {"spec": spec, "secret": secret, "overlap": Overlap(row.overlap), "catch_up": CatchUp(row.catch_up)}))


def _run_of(row: Row[Any]) -> ScheduleRun:
    values = {name: getattr(row, name) for name in ScheduleRun.__dataclass_fields__}
    return ScheduleRun(**(values | {"outcome": RunOutcome(row.outcome)}))
