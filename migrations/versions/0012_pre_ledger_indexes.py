"""
Covering indexes for the ledger of missing tools, and indexes to find sets of tools that no score refers to.

The covering indexes contain every column that the ledger reads, so that it need not read the scores.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op
from sqlalchemy import text

revision = "0012"
down_revision = "0011"
phase = "pre"

# Name -> table and definition. Only completed scores enter the first one, so the queue does not pay for it.
INDEXES = {
    "session_scores_looked_at": (
        "session_scores",
        "(session_id, completed_at DESC, score_id) "
        "INCLUDE (chain_id, criteria, judge_fingerprint, tools_hash, total_score) "
        "WHERE status = 'completed' AND purpose = 'production'",
    ),
    "score_missing_tools_looked_at": ("score_missing_tools", "(score_id) INCLUDE (tool_name)"),
    "session_scores_with_tools": ("session_scores", "(tools_hash) WHERE tools_hash IS NOT NULL"),
    "tool_lists_recent": ("tool_lists", "(first_used_at)"),
}
IS_IN_USE = "SELECT EXISTS (SELECT FROM sessions)"
# Null: the index does not exist. An index whose build was interrupted exists and is not valid.
IS_VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('\"{schema}\".{name}')"


def upgrade() -> None:
    if op.get_bind().scalar(text(IS_IN_USE)):
        _build_beside_work()
        return
    for name, (table, on) in INDEXES.items():
        op.execute(f"CREATE INDEX {name} ON {table} {on}")


def _build_beside_work() -> None:
    """
    Build the indexes while scores are being written, each in a step of its own.

    Indexes that an interrupted run has finished are kept; an index that it left invalid is built again.
    """
    schema = op.get_context().version_table_schema
    with op.get_context().autocommit_block():
        for name, (table, on) in INDEXES.items():
            is_valid = op.get_bind().scalar(text(IS_VALID.format(schema=schema, name=name)))
            if is_valid:
                continue
            if is_valid is not None:
                op.execute(f'DROP INDEX CONCURRENTLY "{schema}".{name}')
            op.execute(f'CREATE INDEX CONCURRENTLY {name} ON "{schema}".{table} {on}')


def downgrade() -> None:
    op.execute(f"DROP INDEX {', '.join(INDEXES)}")
