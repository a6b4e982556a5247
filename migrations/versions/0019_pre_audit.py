"""
The audit record holds every change with its door and address, also changes without a session.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0019"
down_revision = "0018"
phase = "pre"

# No row is read or written: a column without a default and a constraint that goes change the catalogue alone.
UP = """
ALTER TABLE changes
  ALTER COLUMN session_id DROP NOT NULL,
  ALTER COLUMN score_id DROP NOT NULL,
  DROP CONSTRAINT changes_change_check,
  ADD COLUMN through text,
  ADD COLUMN address text,
  ADD COLUMN details jsonb
"""
DOWN = """
ALTER TABLE changes
  ALTER COLUMN session_id SET NOT NULL,
  ALTER COLUMN score_id SET NOT NULL,
  ADD CONSTRAINT changes_change_check CHECK (change IN ('score', 'rescore', 'cancel', 'label')),
  DROP COLUMN through,
  DROP COLUMN address,
  DROP COLUMN details
"""


def upgrade() -> None:
    op.execute(UP)


def downgrade() -> None:
    op.execute("DELETE FROM changes WHERE session_id IS NULL OR score_id IS NULL")
    op.execute(DOWN)
