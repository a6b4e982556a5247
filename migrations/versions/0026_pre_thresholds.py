"""
The threshold of a score, draws of a day that is not over, and what the labels near a total are found by.

Phase: pre (additive; run before the version that needs it).

A worker of the version before leaves `pass_threshold` and `judge_passed` empty. An API of the version before does not
draw the rest of a day that was drawn from before it was over, and its labels are not found near a total.
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
    # People write labels, so there are few. Statements of the version before join scores and labels and name columns of
    # scores without their table, so labels have other names for them.
    op.execute("ALTER TABLE score_labels ADD COLUMN judged_by text, ADD COLUMN judged_total int")
    op.execute(
        "UPDATE score_labels l SET judged_by = s.criteria_hash, judged_total = s.total_score "
        "FROM session_scores s WHERE s.score_id = l.score_id"
    )
    op.execute("CREATE INDEX score_labels_by_total ON score_labels (judged_by, judged_total)")


def downgrade() -> None:
    op.execute("ALTER TABLE score_labels DROP COLUMN judged_total, DROP COLUMN judged_by")
    op.execute("ALTER TABLE review_days DROP COLUMN drawn_until")
    op.execute("ALTER TABLE session_scores DROP COLUMN judge_passed, DROP COLUMN pass_threshold")
