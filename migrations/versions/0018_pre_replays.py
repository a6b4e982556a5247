"""
Replays of dead letters, so that intake tells them from records with forged headers.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0018"
down_revision = "0017"
phase = "pre"

TABLE = """
CREATE TABLE replays (
  replay_hash bytea PRIMARY KEY,                  -- SHA-256 of the original position and the content
  replayed_at timestamptz NOT NULL DEFAULT now()
)
"""


def upgrade() -> None:
    op.execute(TABLE)


def downgrade() -> None:
    op.execute("DROP TABLE replays")
