"""
The names of criteria and chains that judging workers know, and whether the chain of a score was named.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0016"
down_revision = "0015"
phase = "pre"

STATEMENTS = (
    """
    CREATE TABLE known_names (
      kind    text NOT NULL CHECK (kind IN ('criteria', 'chain')),
      name    text NOT NULL,
      seen_at timestamptz NOT NULL,  -- when a worker last announced that it knows the name
      PRIMARY KEY (kind, name)
    ) WITH (fillfactor = 50)
    """,
    # Null: accepted by a version that did not record it.
    "ALTER TABLE session_scores ADD COLUMN chain_is_named boolean",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    op.execute("ALTER TABLE session_scores DROP COLUMN chain_is_named")
    op.execute("DROP TABLE known_names")
