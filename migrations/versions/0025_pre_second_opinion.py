"""
The second opinion of a score; turns may have further kinds.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0025"
down_revision = "0024"
phase = "pre"


# No row is read or written: a column without a default and a constraint that goes change the catalogue alone.
def upgrade() -> None:
    op.execute("ALTER TABLE session_scores ADD COLUMN second_opinion jsonb")
    op.execute("ALTER TABLE judge_turns DROP CONSTRAINT judge_turns_kind_check")


def downgrade() -> None:
    op.execute("DELETE FROM judge_turns WHERE kind = 'second_opinion'")
    op.execute(
        "ALTER TABLE judge_turns ADD CONSTRAINT judge_turns_kind_check "
        "CHECK (kind IN ('analysis', 'reminder', 'repair', 'sample', 'masked', 'missing_tools'))"
    )
    op.execute("ALTER TABLE session_scores DROP COLUMN second_opinion")
