"""
Bookmarks of the bridge and of the write-back: how far sessions are announced, and scores written back.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0006"
down_revision = "0005"
phase = "pre"

TABLES = """
-- One row once a bridge has run. Sessions that TARSy created before `settled_before` are settled: each was
-- announced, need not be announced, or is in `bridge_announced` as open.
CREATE TABLE bridge_bookmark (
  singleton      boolean PRIMARY KEY DEFAULT true CHECK (singleton),
  since          timestamptz NOT NULL,  -- sessions that ended earlier are not announced
  settled_before timestamptz NOT NULL,
  -- The sweep under way: the time up to which it settles, and the last session it handled. Null: no sweep.
  will_settle    timestamptz,
  at_status      text,
  at_created_at  timestamptz,
  at_session_id  text,
  server         text,                  -- TARSy's server; a sweep settles only with the answers of one server
  swept_at       timestamptz,           -- end of the last whole sweep
  CONSTRAINT a_sweep_is_somewhere CHECK ((will_settle IS NULL) = (at_status IS NULL))
);

-- Sessions that were announced and are not settled, so that the next sweep does not announce them again; and
-- sessions that were seen open, so that their end is announced whatever their times are.
CREATE TABLE bridge_announced (
  session_id text PRIMARY KEY,
  event_id   uuid,                      -- null: the session was open
  created_at timestamptz NOT NULL       -- of the session, in TARSy
);
CREATE INDEX bridge_announced_created ON bridge_announced (created_at) WHERE event_id IS NOT NULL;
CREATE INDEX bridge_announced_open ON bridge_announced (session_id) WHERE event_id IS NULL;

-- Scoring events up to this position were handled: their scores are in TARSy's tables, or will never be.
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
