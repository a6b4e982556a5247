"""
Where claims start to look for due scores, so that they do not read the index entries of all claimed ones.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0017"
down_revision = "0016"
phase = "pre"

UPGRADE = """
CREATE TABLE claim_floor (
  singleton  boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  due        timestamptz NOT NULL DEFAULT '-infinity',  -- no pending score was due earlier at the last check
  checked_at timestamptz NOT NULL DEFAULT '-infinity'
)
"""


def upgrade() -> None:
    op.execute(UPGRADE)
    op.execute("INSERT INTO claim_floor DEFAULT VALUES")


def downgrade() -> None:
    op.execute("DROP TABLE claim_floor")
