"""
What was erased, up to where events may be gone, and indexes by which a clean-up finds what is old.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op
from sqlalchemy import text

revision = "0008"
down_revision = "0007"
phase = "pre"

# Name -> what it is on.
INDEXES = {
    "scoring_requests_received": ("scoring_requests", "(received_at)"),
    "judge_turns_replies": ("judge_turns", "(created_at) WHERE reply <> ''"),
}
IS_IN_USE = "SELECT EXISTS (SELECT FROM sessions)"
# Null: there is no such index. One that was being built when its migration was interrupted is there and not valid.
IS_VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('\"{schema}\".{name}')"

CHANGES = """
-- That a session was erased, by whom and when; of the session itself only the SHA-256 of its id.
CREATE TABLE erasures (
  erasure_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  erased_at    timestamptz NOT NULL DEFAULT now(),
  erased_by    text NOT NULL,
  why          text NOT NULL CHECK (why IN ('asked', 'deleted_upstream')),
  session_hash text NOT NULL,
  scores       int NOT NULL            -- how many it had
);
CREATE INDEX erasures_of_session ON erasures (session_hash);

-- Events up to this position may be gone: whoever asks for what is behind an earlier one misses something.
ALTER TABLE relay_position ADD COLUMN forgotten bigint NOT NULL DEFAULT 0;
"""


def upgrade() -> None:
    # The indexes first: what stands before a step out of the transaction would be committed by it, and met again
    # after an interruption.
    if op.get_bind().scalar(text(IS_IN_USE)):
        _build_beside_work()
    else:
        for name, (table, on) in INDEXES.items():
            op.execute(f"CREATE INDEX {name} ON {table} {on}")
    for statement in CHANGES.split(";\n"):
        if statement.strip():
            op.execute(statement)


def _build_beside_work() -> None:
    """Build the indexes while others write, each in a step of its own; what an interruption left is mended."""
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
