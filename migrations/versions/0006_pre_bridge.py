"""
Where the bridge from TARSy's database stands, and how far scores have been written back to it.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0006"
down_revision = "0005"
phase = "pre"

TABLES = """
-- One row once a bridge has run. What TARSy created before `settled_before` is settled: it was announced, is nobody's
-- business, or stands in `bridge_announced` as open.
CREATE TABLE bridge_bookmark (
  singleton      boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  since          timestamptz NOT NULL,  -- sessions that ended earlier are nobody's business
  settled_before timestamptz NOT NULL,
  -- The sweep under way: what it will settle, and the last session that was dealt with. Null: none is.
  will_settle    timestamptz,
  at_status      text,
  at_created_at  timestamptz,
  at_session_id  text,
  server         text,                  -- of TARSy's: only what one server told is settled
  swept_at       timestamptz,           -- end of the last whole sweep
  CONSTRAINT a_sweep_is_somewhere CHECK ((will_settle IS NULL) = (at_status IS NULL))
);

-- What was announced and is not settled, so that the next sweep, which meets it again, says nothing; and what was seen
-- open, so that its end is announced whatever its times say.
CREATE TABLE bridge_announced (
  session_id text PRIMARY KEY,
  event_id   uuid,                      -- null: it was open
  created_at timestamptz NOT NULL       -- of the session, in TARSy
);
CREATE INDEX bridge_announced_created ON bridge_announced (created_at) WHERE event_id IS NOT NULL;
CREATE INDEX bridge_announced_open ON bridge_announced (session_id) WHERE event_id IS NULL;

-- Scoring events up to this position were looked at: what they end stands in TARSy's tables, or never will.
CREATE TABLE write_back_bookmark (
  singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  position  bigint NOT NULL
);
"""


def upgrade() -> None:
    for statement in TABLES.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    op.execute("DROP TABLE write_back_bookmark, bridge_announced, bridge_bookmark")
