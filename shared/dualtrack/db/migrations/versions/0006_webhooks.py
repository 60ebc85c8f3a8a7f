"""Webhooks: endpoints of tenants and of jobs, and the outbox of deliveries to them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_JSON = postgresql.JSONB(astext_type=sa.Text())


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("events", _JSON, nullable=False),
        sa.Column("description", sa.Text(), server_default="", nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("previous_secret", sa.Text(), nullable=True),
        sa.Column("previous_until", _TIME, nullable=True),
        sa.Column("disabled_at", _TIME, nullable=True),
        sa.Column("disabled_reason", sa.Text(), nullable=True),
        sa.Column("created_at", _TIME, server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("(previous_secret IS NULL) = (previous_until IS NULL)", name=op.f("ck_webhooks_previous")),
        sa.CheckConstraint("(disabled_at IS NULL) = (disabled_reason IS NULL)", name=op.f("ck_webhooks_disabled")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_webhooks_tenant_id_tenants")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_webhooks_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )
    op.create_index("ix_webhooks_tenant_page", "webhooks", ["tenant_id", "id"], postgresql_where=sa.text("job_id IS NULL"))
    op.create_index("ix_webhooks_job", "webhooks", ["job_id"], unique=True, postgresql_where=sa.text("job_id IS NOT NULL"))
    op.create_table(
        "deliveries",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("webhook_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), server_default="pending", nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("tries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("lease_until", _TIME, nullable=True),
        sa.Column("due_at", _TIME, nullable=True),
        sa.Column("since", _TIME, server_default=sa.text("now()"), nullable=False),
        sa.Column("log", _JSON, server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("created_at", _TIME, server_default=sa.text("now()"), nullable=False),
        sa.Column("finished_at", _TIME, nullable=True),
        sa.CheckConstraint("status IN ('pending', 'delivered', 'failed')", name=op.f("ck_deliveries_status")),
        sa.CheckConstraint(
            "(status = 'pending') = (due_at IS NOT NULL) AND (status = 'pending') = (finished_at IS NULL)",
            name=op.f("ck_deliveries_at_rest"),
        ),
        sa.CheckConstraint("status = 'pending' OR lease_until IS NULL", name=op.f("ck_deliveries_lease")),
        sa.ForeignKeyConstraint(["webhook_id"], ["webhooks.id"], name=op.f("fk_deliveries_webhook_id_webhooks"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_deliveries_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
        sa.UniqueConstraint("webhook_id", "job_id", "seq", name=op.f("uq_deliveries_webhook_id_job_id_seq")),
    )
    op.create_index("ix_deliveries_webhook_page", "deliveries", ["webhook_id", "id"])
    op.create_index("ix_deliveries_due", "deliveries", ["due_at"], postgresql_where=sa.text("due_at IS NOT NULL"))
    op.create_index("ix_deliveries_leased", "deliveries", ["lease_until"], postgresql_where=sa.text("lease_until IS NOT NULL"))


def downgrade() -> None:
    op.drop_table("deliveries")
    op.drop_table("webhooks")
