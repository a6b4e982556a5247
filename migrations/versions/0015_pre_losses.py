"""
How often the worker of a score was lost, and an index of the waiting scores that this has happened to.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op
from sqlalchemy import text

revision = "0015"
down_revision = "0014"
phase = "pre"

INDEX = "session_scores_lost"
ON = "session_scores (priority, next_attempt_at) WHERE status = 'pending' AND losses > 0"
IS_IN_USE = "SELECT EXISTS (SELECT FROM sessions)"
# Null: the index does not exist. An index whose build was interrupted exists and is not valid.
IS_VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('\"{schema}\".{name}')"


def upgrade() -> None:
    # A constant default is stored once, so the table is not rewritten. A run that is interrupted while it
    # builds the index has committed the column.
    op.execute("ALTER TABLE session_scores ADD COLUMN IF NOT EXISTS losses int NOT NULL DEFAULT 0")
    if op.get_bind().scalar(text(IS_IN_USE)):
        _build_beside_work()
    else:
        op.execute(f"CREATE INDEX {INDEX} ON {ON}")


def _build_beside_work() -> None:
    """Build the index while scores are being written; builds an invalid index again."""
    schema = op.get_context().version_table_schema
    with op.get_context().autocommit_block():
        is_valid = op.get_bind().scalar(text(IS_VALID.format(schema=schema, name=INDEX)))
        if is_valid is False:
            op.execute(f'DROP INDEX CONCURRENTLY "{schema}".{INDEX}')
        if not is_valid:
            op.execute(f'CREATE INDEX CONCURRENTLY {INDEX} ON "{schema}".{ON}')


def downgrade() -> None:
    op.execute("ALTER TABLE session_scores DROP COLUMN losses")
