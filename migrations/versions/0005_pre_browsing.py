"""
Indexes for lists, exports and analytics.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0005"
down_revision = "0004"
phase = "pre"

# A session's time is when it ended, at the latest when it was first seen: nobody can post one from the future.
# None of the indexes on scores gets an entry before the score has ended, so the queue does not pay for them.
INDEXES = """
CREATE INDEX sessions_recent ON sessions (least(completed_at, first_seen_at) DESC, session_id DESC);
CREATE INDEX sessions_of_chain ON sessions (chain_id, least(completed_at, first_seen_at) DESC, session_id DESC);
CREATE INDEX sessions_of_alert_type ON sessions (alert_type, least(completed_at, first_seen_at) DESC, session_id DESC);
CREATE INDEX sessions_by_prefix ON sessions (lower(session_id) text_pattern_ops);
CREATE INDEX sessions_by_alert_prefix ON sessions (lower(alert_type) text_pattern_ops);
CREATE INDEX sessions_labels ON sessions USING gin (labels jsonb_path_ops);

CREATE INDEX session_scores_latest ON session_scores (session_id, completed_at DESC, score_id)
  WHERE status = 'completed' AND purpose = 'production';
CREATE INDEX session_scores_by_total ON session_scores (total_score, session_id)
  WHERE status = 'completed' AND purpose = 'production';
CREATE INDEX session_scores_by_time ON session_scores (completed_at)
  WHERE status = 'completed' AND purpose = 'production';
CREATE INDEX session_scores_of_chain ON session_scores (chain_id, completed_at)
  WHERE status = 'completed' AND purpose = 'production';
CREATE INDEX session_scores_of_criteria ON session_scores (criteria, completed_at)
  WHERE status = 'completed' AND purpose = 'production';
CREATE INDEX session_scores_flags ON session_scores USING gin (flags jsonb_path_ops)
  WHERE status = 'completed' AND purpose = 'production';
CREATE INDEX session_scores_cancelled ON session_scores (session_id)
  WHERE status = 'cancelled' AND purpose = 'production';
"""

NAMES = (
    *("sessions_recent", "sessions_of_chain", "sessions_of_alert_type", "sessions_by_prefix"),
    *("sessions_by_alert_prefix", "sessions_labels"),
    *("session_scores_latest", "session_scores_by_total", "session_scores_by_time", "session_scores_of_chain"),
    *("session_scores_of_criteria", "session_scores_flags", "session_scores_cancelled"),
)


# Sources may have told longer names than an index holds.
CLIP = """
UPDATE sessions SET alert_type = left(alert_type, 255), chain_id = left(chain_id, 255)
  WHERE length(alert_type) > 255 OR length(chain_id) > 255;
UPDATE session_scores SET chain_id = left(chain_id, 255) WHERE length(chain_id) > 255;
"""


def upgrade() -> None:
    for statement in CLIP.split(";\n"):
        if statement.strip():
            op.execute(statement)
    for statement in INDEXES.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    op.execute(f"DROP INDEX {', '.join(NAMES)}")
