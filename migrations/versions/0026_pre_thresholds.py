"""
The threshold of a score, and whether its total reached it.

Phase: pre (additive; run before the version that needs it).

A worker of the version before leaves both empty.
"""

from alembic import op

revision = "0026"
down_revision = "0025"
phase = "pre"


# Columns without a default change the catalogue alone.
def upgrade() -> None:
    op.execute("ALTER TABLE session_scores ADD COLUMN pass_threshold double precision, ADD COLUMN judge_passed boolean")


def downgrade() -> None:
    op.execute("ALTER TABLE session_scores DROP COLUMN judge_passed, DROP COLUMN pass_threshold")
