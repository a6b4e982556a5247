"""
The threshold of a score, draws of a day that is not over, and an index for the labels near a total.

Phase: pre (additive; run before the version that needs it).

A worker of the version before leaves `pass_threshold` and `judge_passed` empty. An API of the version before does not
draw the rest of a day that was drawn from before it was over.
"""

from alembic import op

revision = "0026"
down_revision = "0025"
phase = "pre"


# Columns without a default change the catalogue alone.
def upgrade() -> None:
    op.execute("ALTER TABLE session_scores ADD COLUMN pass_threshold double precision, ADD COLUMN judge_passed boolean")
    # Scores of the day that were completed before have been candidates; null: all of them.
    op.execute("ALTER TABLE review_days ADD COLUMN drawn_until timestamptz")
    # At most ten picks for each draw and judge, so the index is built in moments.
    op.execute("CREATE INDEX review_picks_by_total ON review_picks (criteria_hash, total_score)")


def downgrade() -> None:
    op.execute("DROP INDEX review_picks_by_total")
    op.execute("ALTER TABLE review_days DROP COLUMN drawn_until")
    op.execute("ALTER TABLE session_scores DROP COLUMN judge_passed, DROP COLUMN pass_threshold")
