"""Approvals bound to the exact call: what was approved instead of what was asked for, and calls that never run without one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("calls", sa.Column("guarded", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("approvals", sa.Column("edited_arguments", postgresql.JSONB(astext_type=sa.Text()), nullable=True))
    op.add_column("approvals", sa.Column("edited_sha256", sa.Text(), nullable=True))
    op.add_column("approvals", sa.Column("outcome", sa.Text(), nullable=True))
    op.create_check_constraint(op.f("ck_approvals_edited"), "approvals", "(edited_arguments IS NULL) = (edited_sha256 IS NULL)")
    op.create_check_constraint(
        op.f("ck_approvals_outcome"), "approvals", "outcome IS NULL OR outcome IN ('happened', 'not_happened', 'retry', 'fail')"
    )


def downgrade() -> None:
    for name in ("outcome", "edited_sha256", "edited_arguments"):  # a column's constraints go with it
        op.drop_column("approvals", name)
    op.drop_column("calls", "guarded")
