"""
The threshold of a score, draws of a day that is not over, and what the labels near a total are found by.

Phase: pre (additive; run before the version that needs it).

A worker of the version before leaves `pass_threshold` and `judge_passed` empty. An API of the version before
does not
draw the rest of a day that was drawn from before it was over, and its labels are not found near a total.
"""

from alembic import op

revision = "0026"
down_revision = "0025"
phase = "pre"


# Columns without a default change the catalogue alone.
def upgrade() -> None:
    op.execute(
        "ALTER TABLE session_scores ADD COLUMN pass_threshold double precision, ADD COLUMN judge_passed boolean"
    )
    # Scores of the day that were completed before have been candidates; null: all of them.
    op.execute("ALTER TABLE review_days ADD COLUMN drawn_until timestamptz")
    # People write labels, so there are few. Statements of the version before join scores and labels and name
    # columns of scores without their table, so labels have other names for them.
    op.execute("ALTER TABLE score_labels ADD COLUMN scored_under text, ADD COLUMN scored_total int")
    op.execute(
        "UPDATE score_labels l SET scored_under = s.criteria_hash, scored_total = s.total_score "
        "FROM session_scores s WHERE s.score_id = l.score_id"
    )
    op.execute("CREATE INDEX score_labels_by_total ON score_labels (scored_under, scored_total)")


def downgrade() -> None:
    op.execute("ALTER TABLE score_labels DROP COLUMN scored_total, DROP COLUMN scored_under")
    op.execute("ALTER TABLE review_days DROP COLUMN drawn_until")
    op.execute("ALTER TABLE session_scores DROP COLUMN judge_passed, DROP COLUMN pass_threshold")
