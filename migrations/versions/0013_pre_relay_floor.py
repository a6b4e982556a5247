"""
Where the relay starts to look for events that wait, so that it does not read the index entries of all others.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0013"
down_revision = "0012"
phase = "pre"

# A table of its own and not columns of `relay_position`: each change of a row leaves a version, and as long
# as a snapshot is open all of them are read. `relay_position` changes with each pass, this row once per 1,000
# events.
UPGRADE = """
CREATE TABLE relay_floor (
  singleton  boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  published  bigint NOT NULL DEFAULT 0,  -- every event with a position up to this one is published
  entry      bigint NOT NULL DEFAULT 0,  -- every event with an entry up to this one has a position
  -- The next value of `entry`, valid once every transaction with an id below `next_xid` has ended.
  next_entry bigint NOT NULL DEFAULT 0,
  next_xid   xid8 NOT NULL DEFAULT '0'
)
"""


def upgrade() -> None:
    op.execute(UPGRADE)
    op.execute("INSERT INTO relay_floor DEFAULT VALUES")


def downgrade() -> None:
    op.execute("DROP TABLE relay_floor")
