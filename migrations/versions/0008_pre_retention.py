"""
The record of erasures, the position up to which events may be deleted, and indexes for retention.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op
from sqlalchemy import text

revision = "0008"
down_revision = "0007"
phase = "pre"

# Name -> table and definition.
INDEXES = {
    "scoring_requests_received": ("scoring_requests", "(received_at)"),
    "judge_turns_replies": ("judge_turns", "(created_at) WHERE reply <> ''"),
}
IS_IN_USE = "SELECT EXISTS (SELECT FROM sessions)"
# Null: the index does not exist. An index whose build was interrupted exists and is not valid.
IS_VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('\"{schema}\".{name}')"

CHANGES = """
-- Erasures of sessions: time, user and reason. Of the session only the SHA-256 of its id is kept.
CREATE TABLE erasures (
  erasure_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  erased_at    timestamptz NOT NULL DEFAULT now(),
  erased_by    text NOT NULL,
  why          text NOT NULL CHECK (why IN ('asked', 'deleted_upstream')),
  session_hash text NOT NULL,
  scores       int NOT NULL            -- number of its scores
);
CREATE INDEX erasures_of_session ON erasures (session_hash);

-- Events up to this position may be deleted: a client that continues after an earlier position misses events.
ALTER TABLE relay_position ADD COLUMN forgotten bigint NOT NULL DEFAULT 0;
"""


def upgrade() -> None:
    # The indexes come first: leaving the transaction commits the statements before it, and a run after an
    # interruption would execute them again.
    if op.get_bind().scalar(text(IS_IN_USE)):
        _build_beside_work()
    else:
        for name, (table, on) in INDEXES.items():
            op.execute(f"CREATE INDEX {name} ON {table} {on}")
    for statement in CHANGES.split(";\n"):
        if statement.strip():
            op.execute(statement)


def _build_beside_work() -> None:
    """Build the indexes on tables in use, each in a step of its own; builds an invalid index again."""
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
    op.execute("ALTER TABLE relay_position DROP COLUMN forgotten")
    op.execute("DROP TABLE erasures")
    op.execute(f"DROP INDEX {', '.join(INDEXES)}")
