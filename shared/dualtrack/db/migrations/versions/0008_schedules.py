"""Schedules, and what became of each of their times."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), server_default="", nullable=False),
        sa.Column("cron", sa.Text(), nullable=False),
        sa.Column("timezone", sa.Text(), nullable=False),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("overlap", sa.Text(), nullable=False),
        sa.Column("catch_up", sa.Text(), nullable=False),
        sa.Column("paused", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("next_at", _TIME, nullable=True),
        sa.Column("created_at", _TIME, server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("overlap IN ('skip', 'queue', 'cancel')", name=op.f("ck_schedules_overlap")),
        sa.CheckConstraint("catch_up IN ('latest', 'skip')", name=op.f("ck_schedules_catch_up")),
        sa.CheckConstraint("NOT (paused AND next_at IS NOT NULL)", name=op.f("ck_schedules_paused")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_schedules_tenant_id_tenants")),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_schedules_key_id_api_keys")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
    )
    op.create_index("ix_schedules_tenant_page", "schedules", ["tenant_id", "id"])
    op.create_index("ix_schedules_due", "schedules", ["next_at"], postgresql_where=sa.text("next_at IS NOT NULL"))
    op.create_table(
        "schedule_runs",
        sa.Column("schedule_id", sa.Text(), nullable=False),
        sa.Column("tick_at", _TIME, nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("missed", sa.Integer(), server_default="0", nullable=False),
        sa.Column("manual", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("created_at", _TIME, server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("outcome IN ('started', 'queued', 'skipped', 'failed')", name=op.f("ck_schedule_runs_outcome")),
        sa.CheckConstraint("(outcome = 'started') = (job_id IS NOT NULL)", name=op.f("ck_schedule_runs_job")),
        sa.ForeignKeyConstraint(["schedule_id"], ["schedules.id"], name=op.f("fk_schedule_runs_schedule_id_schedules"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_schedule_runs_job_id_jobs")),
        sa.PrimaryKeyConstraint("schedule_id", "tick_at", name=op.f("pk_schedule_runs")),
        sa.UniqueConstraint("job_id", name=op.f("uq_schedule_runs_job_id")),
    )
    op.create_index("ix_schedule_runs_queued", "schedule_runs", ["schedule_id"], postgresql_where=sa.text("outcome = 'queued'"))


def downgrade() -> None:
    op.drop_table("schedule_runs")
    op.drop_table("schedules")
