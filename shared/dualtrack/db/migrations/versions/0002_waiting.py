"""Jobs that wait: holds, budgets, approvals, questions, messages, children and forks; calls that are held until somebody decides."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)

# The pairs are those of dualtrack.domain.lifecycle.TRANSITIONS at this revision; a test compares them.
_LIFECYCLE = """
    CREATE OR REPLACE FUNCTION jobs_lifecycle() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF (OLD.status, NEW.status) NOT IN (
            ('queued', 'running'), ('queued', 'waiting'), ('queued', 'cancelled'), ('queued', 'expired'), ('queued', 'failed'),
            ('running', 'waiting'), ('waiting', 'running'), ('waiting', 'queued'),
            ('running', 'succeeded'), ('running', 'failed'), ('running', 'cancelled'), ('running', 'expired'),
            ('waiting', 'failed'), ('waiting', 'cancelled'), ('waiting', 'expired')
        ) THEN
            RAISE EXCEPTION 'job %: % -> % is not in the lifecycle', OLD.id, OLD.status, NEW.status USING ERRCODE = 'check_violation';
        END IF;
        RETURN NEW;
    END $$
"""


def upgrade() -> None:
    op.execute(_LIFECYCLE)
    for column in (
        sa.Column("key_id", sa.Text(), nullable=True),
        sa.Column("limits", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("hold", sa.Text(), nullable=True),
        sa.Column("waiting_since", _TIME, nullable=True),
        sa.Column("waiting_until", _TIME, nullable=True),
        sa.Column("parent_id", sa.Text(), nullable=True),
        sa.Column("parent_call_id", sa.Text(), nullable=True),
        sa.Column("root_id", sa.Text(), nullable=True),
        sa.Column("depth", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("forked_from", sa.Text(), nullable=True),
        sa.Column("forked_step", sa.Integer(), nullable=True),
        sa.Column("first_workspace", sa.Text(), nullable=True),
    ):
        op.add_column("jobs", column)
    op.create_foreign_key(op.f("fk_jobs_key_id_api_keys"), "jobs", "api_keys", ["key_id"], ["id"])
    op.create_foreign_key(op.f("fk_jobs_parent_id_jobs"), "jobs", "jobs", ["parent_id"], ["id"])
    op.create_foreign_key(op.f("fk_jobs_root_id_jobs"), "jobs", "jobs", ["root_id"], ["id"])
    op.create_foreign_key(op.f("fk_jobs_forked_from_jobs"), "jobs", "jobs", ["forked_from"], ["id"])
    op.create_unique_constraint(op.f("uq_jobs_parent_call_id"), "jobs", ["parent_call_id"])
    op.create_check_constraint(op.f("ck_jobs_hold"), "jobs", "hold IS NULL OR hold IN ('paused', 'budget')")
    op.create_check_constraint(
        op.f("ck_jobs_waiting"),
        "jobs",
        "(status = 'waiting') = (waiting_since IS NOT NULL) AND (waiting_since IS NULL) = (waiting_until IS NULL)"
        " AND (status <> 'waiting' OR (owner IS NULL AND due_at IS NULL AND reason IS NOT NULL))",
    )
    op.create_index("ix_jobs_root", "jobs", ["root_id"], postgresql_where=sa.text("root_id IS NOT NULL"))
    op.create_index("ix_jobs_parent", "jobs", ["parent_id"], postgresql_where=sa.text("parent_id IS NOT NULL"))
    op.create_index("ix_jobs_waiting", "jobs", ["waiting_until"], postgresql_where=sa.text("waiting_until IS NOT NULL"))

    op.add_column("calls", sa.Column("held", sa.Text(), nullable=True))
    op.add_column("calls", sa.Column("intent_at", _TIME, nullable=True))
    op.add_column("calls", sa.Column("workspace", sa.Text(), nullable=True))
    op.create_check_constraint(
        op.f("ck_calls_held"),
        "calls",
        "held IS NULL OR (held IN ('approval', 'input', 'child', 'unknown') AND status = 'pending' AND due_at IS NULL)",
    )
    op.create_index("ix_calls_held", "calls", ["held"], postgresql_where=sa.text("held IS NOT NULL"))

    op.add_column("api_keys", sa.Column("day_tokens", sa.BigInteger(), nullable=True))
    op.add_column("api_keys", sa.Column("day_cost_usd", sa.Numeric(18, 9), nullable=True))
    op.create_table(
        "key_usage",
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("shard", sa.SmallInteger(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cost_usd", sa.Numeric(18, 9), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_key_usage_key_id_api_keys")),
        sa.PrimaryKeyConstraint("key_id", "day", "shard", name=op.f("pk_key_usage")),
    )
    op.create_table(
        "approvals",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("call_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("arguments", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("arguments_sha256", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), server_default="", nullable=False),
        sa.Column("status", sa.Text(), server_default="pending", nullable=False),
        sa.Column("decided_by", sa.Text(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("created_at", _TIME, server_default=sa.text("now()"), nullable=False),
        sa.Column("decided_at", _TIME, nullable=True),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.CheckConstraint("kind IN ('call', 'question', 'unknown')", name=op.f("ck_approvals_kind")),
        sa.CheckConstraint(
            "status IN ('pending', 'approved', 'denied', 'answered', 'expired', 'withdrawn')", name=op.f("ck_approvals_status")
        ),
        sa.CheckConstraint("(status = 'pending') = (decided_at IS NULL)", name=op.f("ck_approvals_decided")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_approvals_tenant_id_tenants")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_approvals_job_id_jobs")),
        sa.ForeignKeyConstraint(["call_id"], ["calls.id"], name=op.f("fk_approvals_call_id_calls")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_approvals")),
    )
    op.create_index("ix_approvals_tenant_page", "approvals", ["tenant_id", "id"])
    op.create_index("ix_approvals_job", "approvals", ["job_id"])
    op.create_index("ix_approvals_open", "approvals", ["call_id"], unique=True, postgresql_where=sa.text("status = 'pending'"))
    op.create_index("ix_approvals_expiry", "approvals", ["expires_at"], postgresql_where=sa.text("status = 'pending'"))
    op.create_table(
        "messages",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("added_by", sa.Text(), nullable=False),
        sa.Column("after_step", sa.Integer(), nullable=True),
        sa.Column("created_at", _TIME, server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("number > 0", name=op.f("ck_messages_number")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_messages_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_messages")),
    )
    op.create_index("ix_messages_new", "messages", ["job_id"], postgresql_where=sa.text("after_step IS NULL"))


def downgrade() -> None:
    op.drop_table("messages")
    op.drop_table("approvals")
    op.drop_table("key_usage")
    for name in ("day_cost_usd", "day_tokens"):
        op.drop_column("api_keys", name)
    for name in ("workspace", "intent_at", "held"):  # a column's constraints and indexes go with it
        op.drop_column("calls", name)
    op.drop_constraint(op.f("ck_jobs_waiting"), "jobs")
    for name in (
        *("first_workspace", "forked_step", "forked_from", "depth", "root_id", "parent_call_id", "parent_id"),
        *("waiting_until", "waiting_since", "hold", "limits", "key_id"),
    ):
        op.drop_column("jobs", name)
    op.execute(_LIFECYCLE.replace("('queued', 'waiting'), ", "").replace(", ('waiting', 'queued')", ""))
