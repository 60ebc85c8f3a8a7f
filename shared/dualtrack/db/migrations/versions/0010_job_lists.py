"""Lists of jobs: which schedule started a job, and indexes for what lists filter on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_INDEXES = (
    ("ix_jobs_ended", ["tenant_id", "status", "id"], "finished_at IS NOT NULL"),
    ("ix_jobs_finished", ["tenant_id", "finished_at"], "finished_at IS NOT NULL"),
    ("ix_jobs_reason", ["tenant_id", "reason", "id"], "reason IS NOT NULL"),
    ("ix_jobs_agent", ["tenant_id", "agent_name", "id"], "agent_name <> 'default'"),
    ("ix_jobs_schedule", ["schedule_id", "id"], "schedule_id IS NOT NULL"),
    ("ix_jobs_forks", ["forked_from", "id"], "forked_from IS NOT NULL"),
)


def upgrade() -> None:
    op.add_column("jobs", sa.Column("schedule_id", sa.Text(), nullable=True))
    op.execute("UPDATE jobs SET schedule_id = runs.schedule_id FROM schedule_runs runs WHERE runs.job_id = jobs.id")
    for name, columns, where in _INDEXES:
        op.create_index(name, "jobs", columns, postgresql_where=sa.text(where))


def downgrade() -> None:
    for name, _, _ in reversed(_INDEXES):
        op.drop_index(name, "jobs")
    op.drop_column("jobs", "schedule_id")
