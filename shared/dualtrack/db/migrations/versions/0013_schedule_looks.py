"""Schedules: until when what is due of one is left alone, so that one which can't be acted on keeps nothing from the others."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("schedules", sa.Column("look_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("schedules", sa.Column("looks", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("schedules", "looks")
    op.drop_column("schedules", "look_at")
