"""The tables of webhooks and schedules; in the same metadata as the others."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from dualtrack.db.tables import metadata

_TIME: Final = DateTime(timezone=True)

webhooks: Final = Table(
    "webhooks",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenants.id"), nullable=False),
    Column("job_id", Text, ForeignKey("jobs.id")),
    Column("url", Text, nullable=False),
    Column("events", JSONB, nullable=False),
    Column("description", Text, nullable=False, server_default=""),
    Column("secret", Text, nullable=False),
    Column("previous_secret", Text),
    Column("previous_until", _TIME),
    Column("disabled_at", _TIME),
    Column("disabled_reason", Text),
    Column("created_at", _TIME, nullable=False, server_default=func.now()),
    Column("changed_at", _TIME),  # when it last began or ceased to be told something, but for `disabled_at`; null: never
    CheckConstraint("(previous_secret IS NULL) = (previous_until IS NULL)", name="previous"),
    CheckConstraint("(disabled_at IS NULL) = (disabled_reason IS NULL)", name="disabled"),
    Index("ix_webhooks_tenant_page", "tenant_id", "id", postgresql_where=text("job_id IS NULL")),
    Index("ix_webhooks_job", "job_id", unique=True, postgresql_where=text("job_id IS NOT NULL")),
)

deliveries: Final = Table(
    "deliveries",
    metadata,
    Column("id", Text, primary_key=True),
    Column("webhook_id", Text, ForeignKey("webhooks.id", ondelete="CASCADE"), nullable=False),
    Column("job_id", Text, ForeignKey("jobs.id"), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("type", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("status", Text, nullable=False, server_default="pending"),
    Column("attempt", Integer, nullable=False, server_default="0"),
    Column("tries", Integer, nullable=False, server_default="0"),
    Column("lease_until", _TIME),  # while an attempt is under way
    Column("due_at", _TIME),  # the next attempt; during one, the end of its lease
    Column("since", _TIME, nullable=False, server_default=func.now()),  # created or redelivered: from here on the retries count
    Column("log", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Column("created_at", _TIME, nullable=False, server_default=func.now()),
    Column("finished_at", _TIME),
    UniqueConstraint("webhook_id", "job_id", "seq"),
    CheckConstraint("status IN ('pending', 'delivered', 'failed')", name="status"),
    CheckConstraint("(status = 'pending') = (due_at IS NOT NULL) AND (status = 'pending') = (finished_at IS NULL)", name="at_rest"),
    CheckConstraint("status = 'pending' OR lease_until IS NULL", name="lease"),
    Index("ix_deliveries_webhook_page", "webhook_id", "id"),
    Index("ix_deliveries_due", "due_at", postgresql_where=text("due_at IS NOT NULL")),
    Index("ix_deliveries_leased", "lease_until", postgresql_where=text("lease_until IS NOT NULL")),
)

schedules: Final = Table(
    "schedules",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenants.id"), nullable=False),
    Column("key_id", Text, ForeignKey("api_keys.id")),
    Column("name", Text, nullable=False, server_default=""),
    Column("cron", Text, nullable=False),
    Column("timezone", Text, nullable=False),
    Column("spec", JSONB, nullable=False),
    Column("overlap", Text, nullable=False),
    Column("catch_up", Text, nullable=False),
    Column("paused", Boolean, nullable=False, server_default=text("false")),
    Column("next_at", _TIME),
    Column("created_at", _TIME, nullable=False, server_default=func.now()),
    Column("look_at", _TIME),  # what is due of it is left alone until then: somebody is at it, or it could not be done
    Column("looks", Integer, nullable=False, server_default="0"),  # in vain, one after the other
    CheckConstraint("overlap IN ('skip', 'queue', 'cancel')", name="overlap"),
    CheckConstraint("catch_up IN ('latest', 'skip')", name="catch_up"),
    CheckConstraint("NOT (paused AND next_at IS NOT NULL)", name="paused"),
    Index("ix_schedules_tenant_page", "tenant_id", "id"),
    Index("ix_schedules_due", "next_at", postgresql_where=text("next_at IS NOT NULL")),
)

schedule_runs: Final = Table(
    "schedule_runs",
    metadata,
    Column("schedule_id", Text, ForeignKey("schedules.id", ondelete="CASCADE"), nullable=False),
    Column("tick_at", _TIME, nullable=False),  # with the schedule the natural key: one time, one job
    Column("outcome", Text, nullable=False),
    Column("job_id", Text, ForeignKey("jobs.id"), unique=True),
    Column("missed", Integer, nullable=False, server_default="0"),
    Column("manual", Boolean, nullable=False, server_default=text("false")),
    Column("message", Text),
    Column("created_at", _TIME, nullable=False, server_default=func.now()),
    PrimaryKeyConstraint("schedule_id", "tick_at"),
    CheckConstraint("outcome IN ('started', 'queued', 'skipped', 'failed')", name="outcome"),
    CheckConstraint("(outcome = 'started') = (job_id IS NOT NULL)", name="job"),
    Index("ix_schedule_runs_queued", "schedule_id", postgresql_where=text("outcome = 'queued'")),
)
