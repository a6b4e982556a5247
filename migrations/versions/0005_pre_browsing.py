"""
Indexes for lists, exports and analytics.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op
from sqlalchemy import text

revision = "0005"
down_revision = "0004"
phase = "pre"

# Name -> definition. The time of a session is its end, but never later than the time when it was first seen,
# so that an event with a time in the future does not stay on top. Scores enter their indexes only when they
# have ended, so the queue does not pay for these indexes.
OF_SESSIONS = {
    "sessions_recent": "(least(completed_at, first_seen_at) DESC, session_id DESC)",
    "sessions_of_chain": "(chain_id, least(completed_at, first_seen_at) DESC, session_id DESC)",
    "sessions_of_alert_type": "(alert_type, least(completed_at, first_seen_at) DESC, session_id DESC)",
    "sessions_by_prefix": "(lower(session_id) text_pattern_ops)",
    "sessions_by_alert_prefix": "(lower(alert_type) text_pattern_ops)",
    "sessions_labels": "USING gin (labels jsonb_path_ops)",
}
_COMPLETED = "WHERE status = 'completed' AND purpose = 'production'"
OF_SCORES = {
    "session_scores_latest": f"(session_id, completed_at DESC, score_id) {_COMPLETED}",
    "session_scores_by_total": f"(total_score, session_id) {_COMPLETED}",
    "session_scores_by_time": f"(completed_at) {_COMPLETED}",
    "session_scores_of_chain": f"(chain_id, completed_at) {_COMPLETED}",
    "session_scores_of_criteria": f"(criteria, completed_at) {_COMPLETED}",
    "session_scores_flags": f"USING gin (flags jsonb_path_ops) {_COMPLETED}",
    "session_scores_cancelled": "(session_id) WHERE status = 'cancelled' AND purpose = 'production'",
}
INDEXES = [
    (name, table, on)
    for table, indexes in (("sessions", OF_SESSIONS), ("session_scores", OF_SCORES))
    for name, on in indexes.items()
]
IS_IN_USE = "SELECT EXISTS (SELECT FROM sessions)"
# Null: the index does not exist. An index whose build was interrupted exists and is not valid.
IS_VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('\"{schema}\".{name}')"

# Sources may have given names that are too long for an index.
CLIP = """
UPDATE sessions SET alert_type = left(alert_type, 255), chain_id = left(chain_id, 255)
  WHERE length(alert_type) > 255 OR length(chain_id) > 255;
UPDATE session_scores SET chain_id = left(chain_id, 255) WHERE length(chain_id) > 255;
"""


def upgrade() -> None:
    for statement in CLIP.split(";\n"):
        if statement.strip():
            op.execute(statement)
    if op.get_bind().scalar(text(IS_IN_USE)):
        _build_beside_work()
        return
    for name, table, on in INDEXES:
        op.execute(f"CREATE INDEX {name} ON {table} {on}")


def _build_beside_work() -> None:
    """
    Build the indexes while sessions and scores are being written, each in a step of its own.

    Indexes that an interrupted run has finished are kept; an index that it left invalid is built again.
    """
    schema = op.get_context().version_table_schema
    with op.get_context().autocommit_block():
        for name, table, on in INDEXES:
            is_valid = op.get_bind().scalar(text(IS_VALID.format(schema=schema, name=name)))
            if is_valid:
                continue
            if is_valid is not None:
                op.execute(f'DROP INDEX CONCURRENTLY "{schema}".{name}')
            op.execute(f'CREATE INDEX CONCURRENTLY {name} ON "{schema}".{table} {on}')


def downgrade() -> None:
    op.execute(f"DROP INDEX {', '.join(name for name, _, _ in INDEXES)}")
