"""
Dead letters by their original position, with their last replay and what came of it.

Phase: pre (additive; run before the version that needs it). Letters of the version before have no row until
they are
replayed.
"""

from alembic import op

revision = "0029"
down_revision = "0027"
phase = "pre"

TABLE = """
CREATE TABLE dead_letters (
  original_topic     text NOT NULL,
  original_partition bigint NOT NULL,
  original_offset    bigint NOT NULL,
  error              text NOT NULL,
  error_message      text NOT NULL,                       -- holds no value from the message
  times              int NOT NULL DEFAULT 1,              -- how often it was written to the dead-letter topic
  failed_at          timestamptz NOT NULL DEFAULT now(),  -- last
  replayed_at        timestamptz,                         -- last
  understood_at      timestamptz,                         -- when intake stored the request of a replay
  PRIMARY KEY (original_topic, original_partition, original_offset)
)
"""


def upgrade() -> None:
    op.execute(TABLE)
    op.execute("CREATE INDEX dead_letters_recent ON dead_letters (failed_at)")


def downgrade() -> None:
    op.execute("DROP TABLE dead_letters")
