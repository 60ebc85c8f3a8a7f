"""The tables. The database enforces what the code promises: checks, foreign keys, natural keys, partial indexes; the
lifecycle trigger lives in the migrations.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Numeric,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from dualtrack.domain.approval import Resolution
from dualtrack.domain.lifecycle import CALL_TERMINAL, TERMINAL, CallStatus, JobStatus, Phase
from dualtrack.domain.tool import Effect
from dualtrack.domain.waiting import ApprovalKind, ApprovalStatus, Held, Hold

USAGE_COLUMNS: Final = ("input_tokens", "output_tokens", "cached_tokens", "cost_usd")
"""What `domain.usage.Usage` is kept in, wherever usage is."""
USUAL_AGENT: Final = "default"
"""The agent of most jobs: the index on agents leaves it out."""
metadata: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _in(column: str, values: object) -> str:
    listed = ", ".join(f"'{value}'" for value in values)  # type: ignore[attr-defined] # enums and frozensets of str
    return f"{column} IN ({listed})"


_TIME: Final = DateTime(timezone=True)
_EMPTY_LIST: Final = text("'[]'::jsonb")
_EMPTY_OBJECT: Final = text("'{}'::jsonb")


def _created() -> Column[object]:
    return Column("created_at", _TIME, nullable=False, server_default=func.now())


def _claim_columns() -> list[Column[object]]:
    """What makes a row claimable: fencing token, lease, and when the scheduler has to ring."""
    return [
        Column("attempt", Integer, nullable=False, server_default="0"),
        Column("tries", Integer, nullable=False, server_default="0"),  # claims since the last record of any kind
        Column("failures", Integer, nullable=False, server_default="0"),  # recorded failures since the last progress
        Column("owner", BigInteger),  # key of the owner's session lock, see db.presence
        Column("lease_until", _TIME),
        Column("due_at", _TIME),
        Column("not_before", _TIME),  # the end of a pause after a failure: a ring that comes earlier is ignored
        Column("rings", Integer, nullable=False, server_default="0"),
    ]


def _usage_columns() -> list[Column[object]]:
    return [
        Column("input_tokens", BigInteger, nullable=False, server_default="0"),
        Column("output_tokens", BigInteger, nullable=False, server_default="0"),
        Column("cached_tokens", BigInteger, nullable=False, server_default="0"),
        Column("cost_usd", Numeric(18, 9), nullable=False, server_default="0"),
    ]


tenants: Final = Table(
    "tenants",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    _created(),
)

api_keys: Final = Table(
    "api_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenants.id"), nullable=False, index=True),
    Column("name", Text, nullable=False),
    Column("prefix", Text, nullable=False),
    Column("sha256", Text, nullable=False, unique=True),
    _created(),
    Column("revoked_at", _TIME),
    Column("day_tokens", BigInteger),  # what all jobs of the key may use in a day (UTC); None: no limit
    Column("day_cost_usd", Numeric(18, 9)),
)

key_usage: Final = Table(
    "key_usage",
    metadata,
    Column("key_id", Text, ForeignKey("api_keys.id"), nullable=False),
    Column("day", Date, nullable=False),
    Column("shard", SmallInteger, nullable=False),  # many jobs of one key at once must not wait for one row
    *_usage_columns(),
    PrimaryKeyConstraint("key_id", "day", "shard"),
)

files: Final = Table(
    "files",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenants.id"), nullable=False),
    Column("filename", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("blob_key", Text, nullable=False),
    Column("content_type", Text, nullable=False),
    _created(),
    Index("ix_files_tenant_page", "tenant_id", "id"),
)

jobs: Final = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenants.id"), nullable=False),
    Column("key_id", Text, ForeignKey("api_keys.id")),
    Column("spec", JSONB, nullable=False),
    Column("limits", JSONB),  # once extended: instead of those of the spec
    Column("metadata", JSONB, nullable=False, server_default=_EMPTY_OBJECT),
    Column("agent_name", Text, nullable=False),
    Column("priority", SmallInteger, nullable=False, server_default="0"),
    Column("status", Text, nullable=False),
    Column("phase", Text, nullable=False),
    Column("reason", Text),
    Column("message", Text),
    Column("answer", Text),
    Column("plan", JSONB, nullable=False, server_default=_EMPTY_LIST),
    Column("step", Integer, nullable=False, server_default="0"),
    Column("workspace", Text),
    Column("last_seq", BigInteger, nullable=False, server_default="0"),
    Column("malformed", Integer, nullable=False, server_default="0"),
    Column("compacted_through", Integer, nullable=False, server_default="0"),
    Column("summary", Text, nullable=False, server_default=""),
    Column("context_tokens", Integer, nullable=False, server_default="0"),
    Column("verified_step", Integer, nullable=False, server_default="0"),
    Column("stopping", Text),
    Column("input_tokens", BigInteger, nullable=False, server_default="0"),
    Column("output_tokens", BigInteger, nullable=False, server_default="0"),
    Column("cached_tokens", BigInteger, nullable=False, server_default="0"),
    Column("cost_usd", Numeric(18, 9), nullable=False, server_default="0"),
    Column("traceparent", Text, nullable=False, server_default=""),
    Column("request_traceparent", Text, nullable=False, server_default=""),
    *_claim_columns(),
    _created(),
    Column("started_at", _TIME),
    Column("finished_at", _TIME),
    Column("deadline_at", _TIME, nullable=False),
    Column("hold", Text),
    Column("waiting_since", _TIME),
    Column("waiting_until", _TIME),
    Column("parent_id", Text, ForeignKey("jobs.id")),
    Column("parent_call_id", Text, unique=True),
    Column("root_id", Text, ForeignKey("jobs.id")),
    Column("depth", SmallInteger, nullable=False, server_default="0"),
    Column("forked_from", Text, ForeignKey("jobs.id")),
    Column("forked_step", Integer),
    Column("first_workspace", Text),
    Column("messages", Integer, nullable=False, server_default="0"),
    Column("schedule_id", Text),  # no foreign key: a job outlives the schedule that started it
    CheckConstraint(_in("status", JobStatus), name="status"),
    CheckConstraint(_in("phase", Phase), name="phase"),
    CheckConstraint(f"({_in('status', sorted(TERMINAL))}) = (finished_at IS NOT NULL)", name="finished"),
    CheckConstraint("finished_at IS NULL OR (phase = 'none' AND owner IS NULL AND due_at IS NULL)", name="at_rest"),
    CheckConstraint("(owner IS NULL) = (lease_until IS NULL)", name="lease"),
    CheckConstraint("stopping IS NULL OR stopping IN ('cancelled', 'expired')", name="stopping"),
    Index("ix_jobs_tenant_page", "tenant_id", "id"),
    Index("ix_jobs_metadata", "metadata", postgresql_using="gin", postgresql_ops={"metadata": "jsonb_path_ops"}),
    Index("ix_jobs_due", "due_at", postgresql_where=text("due_at IS NOT NULL")),
    Index("ix_jobs_deadline", "deadline_at", postgresql_where=text("finished_at IS NULL")),
    CheckConstraint(f"hold IS NULL OR {_in('hold', Hold)}", name="hold"),
    CheckConstraint(
        "(status = 'waiting') = (waiting_since IS NOT NULL) AND (waiting_since IS NULL) = (waiting_until IS NULL)"
        " AND (status <> 'waiting' OR (owner IS NULL AND due_at IS NULL AND reason IS NOT NULL))",
        name="waiting",
    ),
    Index("ix_jobs_owner", "owner", postgresql_where=text("owner IS NOT NULL")),
    Index("ix_jobs_root", "root_id", postgresql_where=text("root_id IS NOT NULL")),
    Index("ix_jobs_parent", "parent_id", postgresql_where=text("parent_id IS NOT NULL")),
    Index("ix_jobs_children", "parent_id", postgresql_where=text("parent_id IS NOT NULL AND finished_at IS NULL")),
    Index("ix_jobs_look", "not_before", postgresql_where=text("waiting_until IS NOT NULL AND not_before IS NOT NULL")),
    Index("ix_jobs_waiting", "waiting_until", postgresql_where=text("waiting_until IS NOT NULL")),
    # What only lists need, see db.job_lists: rows of jobs at work are in them as seldom as can be.
    Index("ix_jobs_ended", "tenant_id", "status", "id", postgresql_where=text("finished_at IS NOT NULL")),
    Index("ix_jobs_finished", "tenant_id", "finished_at", postgresql_where=text("finished_at IS NOT NULL")),
    Index("ix_jobs_reason", "tenant_id", "reason", "id", postgresql_where=text("reason IS NOT NULL")),
    Index("ix_jobs_agent", "tenant_id", "agent_name", "id", postgresql_where=text(f"agent_name <> '{USUAL_AGENT}'")),
    Index("ix_jobs_schedule", "schedule_id", "id", postgresql_where=text("schedule_id IS NOT NULL")),
    Index("ix_jobs_forks", "forked_from", "id", postgresql_where=text("forked_from IS NOT NULL")),
)

steps: Final = Table(
    "steps",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("thought", Text, nullable=False),
    Column("reflection", Text, nullable=False, server_default=""),
    Column("note", Text, nullable=False, server_default=""),
    Column("model", Text, nullable=False),
    Column("input_tokens", BigInteger, nullable=False, server_default="0"),
    Column("output_tokens", BigInteger, nullable=False, server_default="0"),
    Column("cached_tokens", BigInteger, nullable=False, server_default="0"),
    Column("cost_usd", Numeric(18, 9), nullable=False, server_default="0"),
    Column("latency_s", Float, nullable=False, server_default="0"),
    _created(),
    PrimaryKeyConstraint("job_id", "number"),
)

calls: Final = Table(
    "calls",
    metadata,
    Column("id", Text, primary_key=True),
    Column("job_id", Text, ForeignKey("jobs.id"), nullable=False),
    Column("tenant_id", Text, nullable=False),
    Column("step", Integer, nullable=False),
    Column("position", SmallInteger, nullable=False),
    Column("wave", SmallInteger, nullable=False, server_default="0"),
    Column("tool", Text, nullable=False),
    Column("effect", Text, nullable=False),
    Column("arguments", JSONB, nullable=False),
    Column("status", Text, nullable=False),
    Column("ok", Boolean),
    Column("preview", Text, nullable=False, server_default=""),
    Column("observation_key", Text),
    Column("details", JSONB, nullable=False, server_default=_EMPTY_OBJECT),
    Column("traceparent", Text, nullable=False, server_default=""),
    *_claim_columns(),
    _created(),
    Column("started_at", _TIME),
    Column("finished_at", _TIME),
    Column("held", Text),  # what a pending call waits for before it may be claimed
    Column("intent_at", _TIME),  # an external call from here on may have happened
    Column("workspace", Text),  # digest of the workspace after it, where it may have changed
    Column("guarded", Boolean, nullable=False, server_default=text("false")),  # runs only under an approval of its arguments
    UniqueConstraint("job_id", "step", "position"),
    CheckConstraint(_in("status", CallStatus), name="status"),
    CheckConstraint(_in("effect", Effect), name="effect"),
    CheckConstraint(f"({_in('status', sorted(CALL_TERMINAL))}) = (finished_at IS NOT NULL)", name="finished"),
    CheckConstraint("finished_at IS NULL OR (owner IS NULL AND due_at IS NULL)", name="at_rest"),
    CheckConstraint("(owner IS NULL) = (lease_until IS NULL)", name="lease"),
    CheckConstraint("(status = 'running') = (owner IS NOT NULL)", name="running"),
    CheckConstraint(f"held IS NULL OR ({_in('held', Held)} AND status = 'pending' AND due_at IS NULL)", name="held"),
    Index("ix_calls_held", "held", postgresql_where=text("held IS NOT NULL")),
    Index("ix_calls_due", "due_at", postgresql_where=text("due_at IS NOT NULL")),
    Index("ix_calls_owner", "owner", postgresql_where=text("owner IS NOT NULL")),
)

events: Final = Table(
    "events",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id"), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("type", Text, nullable=False),
    Column("data", JSONB, nullable=False),
    Column("at", _TIME, nullable=False, server_default=func.clock_timestamp()),
    PrimaryKeyConstraint("job_id", "seq"),
    CheckConstraint("seq > 0", name="seq"),
)

artifacts: Final = Table(
    "artifacts",
    metadata,
    Column("id", Text, primary_key=True),
    Column("job_id", Text, ForeignKey("jobs.id"), nullable=False),
    Column("tenant_id", Text, nullable=False),
    Column("call_id", Text, ForeignKey("calls.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("path", Text, nullable=False),
    Column("description", Text, nullable=False, server_default=""),
    Column("size", BigInteger, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("blob_key", Text, nullable=False),
    Column("content_type", Text, nullable=False),
    _created(),
    UniqueConstraint("call_id", "name"),
    Index("ix_artifacts_job_page", "job_id", "id"),
)

idempotency_keys: Final = Table(
    "idempotency_keys",
    metadata,
    Column("tenant_id", Text, ForeignKey("tenants.id"), nullable=False),
    Column("key", Text, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("resource_id", Text, nullable=False),
    _created(),
    PrimaryKeyConstraint("tenant_id", "key"),
)

approvals: Final = Table(
    "approvals",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenants.id"), nullable=False),
    Column("job_id", Text, ForeignKey("jobs.id"), nullable=False),
    Column("call_id", Text, ForeignKey("calls.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("tool", Text, nullable=False),
    Column("arguments", JSONB, nullable=False),
    Column("arguments_sha256", Text, nullable=False),
    Column("message", Text, nullable=False, server_default=""),
    Column("status", Text, nullable=False, server_default="pending"),
    Column("decided_by", Text),
    Column("note", Text),
    _created(),
    Column("decided_at", _TIME),
    Column("expires_at", _TIME, nullable=False),
    Column("edited_arguments", JSONB),  # approved instead of `arguments`
    Column("edited_sha256", Text),
    Column("outcome", Text),  # of kind unknown: what somebody said had become of it
    CheckConstraint(_in("kind", ApprovalKind), name="kind"),
    CheckConstraint(_in("status", ApprovalStatus), name="status"),
    CheckConstraint("(status = 'pending') = (decided_at IS NULL)", name="decided"),
    CheckConstraint("(edited_arguments IS NULL) = (edited_sha256 IS NULL)", name="edited"),
    CheckConstraint(f"outcome IS NULL OR {_in('outcome', Resolution)}", name="outcome"),
    Index("ix_approvals_tenant_page", "tenant_id", "id"),
    Index("ix_approvals_job", "job_id"),
    Index("ix_approvals_open", "call_id", unique=True, postgresql_where=text("status = 'pending'")),
    Index("ix_approvals_expiry", "expires_at", postgresql_where=text("status = 'pending'")),
)

messages: Final = Table(
    "messages",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("content", Text, nullable=False),
    Column("added_by", Text, nullable=False),
    Column("after_step", Integer),  # the last step before it was taken up; None: not yet
    _created(),
    CheckConstraint("number > 0", name="number"),
    PrimaryKeyConstraint("job_id", "number"),
    Index("ix_messages_new", "job_id", postgresql_where=text("after_step IS NULL")),
)
