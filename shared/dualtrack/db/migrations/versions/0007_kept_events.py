"""Events can't be deleted by hand: only a transaction that says it enforces a retention rule may."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_FUNCTION = """
    CREATE FUNCTION events_kept() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF coalesce(current_setting('dualtrack.retention', true), '') <> 'on' THEN
            RAISE EXCEPTION 'events are kept: % refused', lower(TG_OP) USING ERRCODE = 'check_violation',
                HINT = 'A job''s events are its only record. To enforce a retention rule: SET LOCAL dualtrack.retention = ''on''.';
        END IF;
        RETURN OLD;
    END $$
"""


def upgrade() -> None:
    op.execute(_FUNCTION)
    op.execute("CREATE TRIGGER events_kept BEFORE DELETE ON events FOR EACH ROW EXECUTE FUNCTION events_kept()")
    op.execute("CREATE TRIGGER events_kept_whole BEFORE TRUNCATE ON events FOR EACH STATEMENT EXECUTE FUNCTION events_kept()")


def downgrade() -> None:
    op.execute("DROP TRIGGER events_kept_whole ON events")
    op.execute("DROP TRIGGER events_kept ON events")
    op.execute("DROP FUNCTION events_kept()")
