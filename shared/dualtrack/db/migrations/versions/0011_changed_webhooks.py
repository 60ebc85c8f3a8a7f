"""Webhooks: when one last changed what it is told, so that what it missed before isn't taken for lost."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("webhooks", sa.Column("changed_at", sa.DateTime(timezone=True), nullable=True))
    op.execute("UPDATE webhooks SET changed_at = now()")  # nobody knows what changed them before


def downgrade() -> None:
    op.drop_column("webhooks", "changed_at")
