"""Families: a job held because its parent is, live children, and jobs whose wait for a budget is looked at again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_constraint(op.f("ck_jobs_hold"), "jobs")
    op.create_check_constraint(op.f("ck_jobs_hold"), "jobs", "hold IS NULL OR hold IN ('paused', 'budget', 'parent')")
    op.create_index("ix_jobs_children", "jobs", ["parent_id"], postgresql_where=sa.text("parent_id IS NOT NULL AND finished_at IS NULL"))
    op.create_index(
        "ix_jobs_look", "jobs", ["not_before"], postgresql_where=sa.text("waiting_until IS NOT NULL AND not_before IS NOT NULL")
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_look", "jobs")
    op.drop_index("ix_jobs_children", "jobs")
    op.execute("UPDATE jobs SET hold = 'paused' WHERE hold = 'parent'")
    op.drop_constraint(op.f("ck_jobs_hold"), "jobs")
    op.create_check_constraint(op.f("ck_jobs_hold"), "jobs", "hold IS NULL OR hold IN ('paused', 'budget')")
