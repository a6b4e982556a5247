"""
The rate of changes of each caller, counted over all processes of the API.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0014"
down_revision = "0013"
phase = "pre"

# Unlogged: it holds the callers of the last minute, and a crash may forget them.
TABLE = """
CREATE UNLOGGED TABLE caller_rates (
  caller  text PRIMARY KEY,
  full_at timestamptz NOT NULL  -- when the caller may make a whole minute's changes at once again
)
"""


def upgrade() -> None:
    op.execute(TABLE)


def downgrade() -> None:
    op.execute("DROP TABLE caller_rates")
