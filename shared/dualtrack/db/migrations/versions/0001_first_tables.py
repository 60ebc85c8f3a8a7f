"""The first tables, and the triggers that keep the promises no check constraint can: lifecycle, one outcome per call, append-only events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# The pairs are those of dualtrack.domain.lifecycle.TRANSITIONS at this revision; a test compares them.
_TRIGGERS = (
    """
    CREATE FUNCTION jobs_lifecycle() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF (OLD.status, NEW.status) NOT IN (
            ('queued', 'running'), ('queued', 'cancelled'), ('queued', 'expired'), ('queued', 'failed'),
            ('running', 'waiting'), ('waiting', 'running'),
            ('running', 'succeeded'), ('running', 'failed'), ('running', 'cancelled'), ('running', 'expired'),
            ('waiting', 'failed'), ('waiting', 'cancelled'), ('waiting', 'expired')
        ) THEN
            RAISE EXCEPTION 'job %: % -> % is not in the lifecycle', OLD.id, OLD.status, NEW.status USING ERRCODE = 'check_violation';
        END IF;
        RETURN NEW;
    END $$
    """,
    """
    CREATE TRIGGER jobs_lifecycle BEFORE UPDATE OF status ON jobs FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION jobs_lifecycle()
    """,
    """
    CREATE FUNCTION calls_outcome_once() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'call %: its outcome is written', OLD.id USING ERRCODE = 'check_violation';
    END $$
    """,
    """
    CREATE TRIGGER calls_outcome_once BEFORE UPDATE ON calls FOR EACH ROW
    WHEN (OLD.finished_at IS NOT NULL) EXECUTE FUNCTION calls_outcome_once()
    """,
    """
    CREATE FUNCTION events_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'events are append-only' USING ERRCODE = 'check_violation';
    END $$
    """,
    """
    CREATE TRIGGER events_append_only BEFORE UPDATE ON events FOR EACH ROW EXECUTE FUNCTION events_append_only()
    """,
)


def upgrade() -> None:
    op.create_table(
        "tenants",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
        sa.UniqueConstraint("name", name=op.f("uq_tenants_name")),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_api_keys_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("sha256", name=op.f("uq_api_keys_sha256")),
    )
    op.create_index(op.f("ix_api_keys_tenant_id"), "api_keys", ["tenant_id"], unique=False)
    op.create_table(
        "files",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("blob_key", sa.Text(), nullable=False),
        sa.Column("content_type", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_files_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_files")),
    )
    op.create_index("ix_files_tenant_page", "files", ["tenant_id", "id"], unique=False)
    op.create_table(
        "idempotency_keys",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("resource_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_idempotency_keys_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("tenant_id", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("metadata", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("agent_name", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("plan", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("step", sa.Integer(), server_default="0", nullable=False),
        sa.Column("workspace", sa.Text(), nullable=True),
        sa.Column("last_seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("malformed", sa.Integer(), server_default="0", nullable=False),
        sa.Column("compacted_through", sa.Integer(), server_default="0", nullable=False),
        sa.Column("verified_step", sa.Integer(), server_default="0", nullable=False),
        sa.Column("stopping", sa.Text(), nullable=True),
        sa.Column("input_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cost_usd", sa.Numeric(precision=18, scale=9), server_default="0", nullable=False),
        sa.Column("traceparent", sa.Text(), server_default="", nullable=False),
        sa.Column("request_traceparent", sa.Text(), server_default="", nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("tries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("owner", sa.BigInteger(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column("rings", sa.Integer(), server_default="0", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("deadline_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "(status IN ('cancelled', 'expired', 'failed', 'succeeded')) = (finished_at IS NOT NULL)", name=op.f("ck_jobs_finished")
        ),
        sa.CheckConstraint("finished_at IS NULL OR (phase = 'none' AND owner IS NULL AND due_at IS NULL)", name=op.f("ck_jobs_at_rest")),
        sa.CheckConstraint("phase IN ('plan', 'execute', 'none')", name=op.f("ck_jobs_phase")),
        sa.CheckConstraint(
            "status IN ('queued', 'running', 'waiting', 'succeeded', 'failed', 'cancelled', 'expired')", name=op.f("ck_jobs_status")
        ),
        sa.CheckConstraint("stopping IS NULL OR stopping IN ('cancelled', 'expired')", name=op.f("ck_jobs_stopping")),
        sa.CheckConstraint("(owner IS NULL) = (lease_until IS NULL)", name=op.f("ck_jobs_lease")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_jobs_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index("ix_jobs_deadline", "jobs", ["deadline_at"], unique=False, postgresql_where=sa.text("finished_at IS NULL"))
    op.create_index("ix_jobs_due", "jobs", ["due_at"], unique=False, postgresql_where=sa.text("due_at IS NOT NULL"))
    op.create_index(
        "ix_jobs_metadata", "jobs", ["metadata"], unique=False, postgresql_using="gin", postgresql_ops={"metadata": "jsonb_path_ops"}
    )
    op.create_index("ix_jobs_owner", "jobs", ["owner"], unique=False, postgresql_where=sa.text("owner IS NOT NULL"))
    op.create_index("ix_jobs_tenant_page", "jobs", ["tenant_id", "id"], unique=False)
    op.create_table(
        "calls",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("position", sa.SmallInteger(), nullable=False),
        sa.Column("wave", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("effect", sa.Text(), nullable=False),
        sa.Column("arguments", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("ok", sa.Boolean(), nullable=True),
        sa.Column("preview", sa.Text(), server_default="", nullable=False),
        sa.Column("observation_key", sa.Text(), nullable=True),
        sa.Column("details", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("traceparent", sa.Text(), server_default="", nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("tries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("owner", sa.BigInteger(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column("rings", sa.Integer(), server_default="0", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(status = 'running') = (owner IS NOT NULL)", name=op.f("ck_calls_running")),
        sa.CheckConstraint("(status IN ('cancelled', 'failed', 'succeeded')) = (finished_at IS NOT NULL)", name=op.f("ck_calls_finished")),
        sa.CheckConstraint("effect IN ('pure', 'workspace', 'external', 'control')", name=op.f("ck_calls_effect")),
        sa.CheckConstraint("status IN ('pending', 'running', 'succeeded', 'failed', 'cancelled')", name=op.f("ck_calls_status")),
        sa.CheckConstraint("(owner IS NULL) = (lease_until IS NULL)", name=op.f("ck_calls_lease")),
        sa.CheckConstraint("finished_at IS NULL OR (owner IS NULL AND due_at IS NULL)", name=op.f("ck_calls_at_rest")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_calls_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_calls")),
        sa.UniqueConstraint("job_id", "step", "position", name=op.f("uq_calls_job_id_step_position")),
    )
    op.create_index("ix_calls_due", "calls", ["due_at"], unique=False, postgresql_where=sa.text("due_at IS NOT NULL"))
    op.create_index("ix_calls_owner", "calls", ["owner"], unique=False, postgresql_where=sa.text("owner IS NOT NULL"))
    op.create_table(
        "events",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("data", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.CheckConstraint("seq > 0", name=op.f("ck_events_seq")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_events_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", "seq", name=op.f("pk_events")),
    )
    op.create_table(
        "steps",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("thought", sa.Text(), nullable=False),
        sa.Column("reflection", sa.Text(), server_default="", nullable=False),
        sa.Column("note", sa.Text(), server_default="", nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cost_usd", sa.Numeric(precision=18, scale=9), server_default="0", nullable=False),
        sa.Column("latency_s", sa.Float(), server_default="0", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_steps_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_steps")),
    )
    op.create_table(
        "artifacts",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("call_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), server_default="", nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("blob_key", sa.Text(), nullable=False),
        sa.Column("content_type", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["call_id"], ["calls.id"], name=op.f("fk_artifacts_call_id_calls")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_artifacts_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_artifacts")),
        sa.UniqueConstraint("call_id", "name", name=op.f("uq_artifacts_call_id_name")),
    )
    op.create_index("ix_artifacts_job_page", "artifacts", ["job_id", "id"], unique=False)
    for statement in _TRIGGERS:
        op.execute(statement)


def downgrade() -> None:
    op.drop_index("ix_artifacts_job_page", table_name="artifacts")
    op.drop_table("artifacts")
    op.drop_table("steps")
    op.drop_table("events")
    op.drop_index("ix_calls_owner", table_name="calls", postgresql_where=sa.text("owner IS NOT NULL"))
    op.drop_index("ix_calls_due", table_name="calls", postgresql_where=sa.text("due_at IS NOT NULL"))
    op.drop_table("calls")
    op.drop_index("ix_jobs_tenant_page", table_name="jobs")
    op.drop_index("ix_jobs_owner", table_name="jobs", postgresql_where=sa.text("owner IS NOT NULL"))
    op.drop_index("ix_jobs_metadata", table_name="jobs", postgresql_using="gin", postgresql_ops={"metadata": "jsonb_path_ops"})
    op.drop_index("ix_jobs_due", table_name="jobs", postgresql_where=sa.text("due_at IS NOT NULL"))
    op.drop_index("ix_jobs_deadline", table_name="jobs", postgresql_where=sa.text("finished_at IS NULL"))
    op.drop_table("jobs")
    op.drop_table("idempotency_keys")
    op.drop_index("ix_files_tenant_page", table_name="files")
    op.drop_table("files")
    op.drop_index(op.f("ix_api_keys_tenant_id"), table_name="api_keys")
    op.drop_table("api_keys")
    op.drop_table("tenants")
    for function in ("jobs_lifecycle", "calls_outcome_once", "events_append_only"):
        op.execute(f"DROP FUNCTION {function}")
