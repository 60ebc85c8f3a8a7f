"""Summaries of older steps: what stands for them in the model's context, and how many tokens the context has."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("summary", sa.Text(), server_default="", nullable=False))
    op.add_column("jobs", sa.Column("context_tokens", sa.Integer(), server_default="0", nullable=False))


def downgrade() -> None:
    op.drop_column("jobs", "context_tokens")
    op.drop_column("jobs", "summary")
