"""Doubts: external calls that were begun and cancelled with their job say that their outcome is unknown, as they do from now on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_TOLD = (
    "Outcome unknown: the call was begun, but its answer never came (a worker died, or the connection broke). "
    "It may or may not have happened: find out before you do it again."
)
_SAY = sa.text(
    """UPDATE calls SET details = details || jsonb_build_object('outcome', 'unknown'), preview = coalesce(nullif(preview, ''), :told)
    WHERE effect = 'external' AND status = 'cancelled' AND intent_at IS NOT NULL"""
)


def upgrade() -> None:
    op.execute("ALTER TABLE calls DISABLE TRIGGER calls_outcome_once")  # outcomes are written once; these were none
    op.execute(_SAY.bindparams(told=_TOLD))
    op.execute("ALTER TABLE calls ENABLE TRIGGER calls_outcome_once")


def downgrade() -> None:
    """What was written is true for the release before as well."""
