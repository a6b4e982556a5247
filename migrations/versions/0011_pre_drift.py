"""
Anchors, and the findings of drift detection.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0011"
down_revision = "0010"
phase = "pre"

TABLES = """
-- Anchors: every judge judges them, to separate changes of judges and agents. A removed one keeps its row.
CREATE TABLE anchor_sessions (
  session_id text PRIMARY KEY REFERENCES sessions ON DELETE CASCADE,
  added_by   text NOT NULL,
  added_at   timestamptz NOT NULL DEFAULT now(),
  note       text,
  removed_by text,
  removed_at timestamptz
);

-- Findings of checks of a chain's scores. Estimates are stored with their intervals.
CREATE TABLE drift_findings (
  event_id        uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  look            text NOT NULL CHECK (look IN ('anchors', 'sessions', 'watch')),
  chain_id        text NOT NULL,
  criteria        text NOT NULL,
  criteria_hash   text NOT NULL,
  old_fingerprint text,                 -- null: found under one judge
  new_fingerprint text NOT NULL,
  cause           text CHECK (cause IN ('judge', 'agents', 'both', 'none')),  -- null: it cannot be determined
  is_clear        boolean NOT NULL,
  judge           jsonb NOT NULL,
  whole           jsonb NOT NULL,
  agents          jsonb NOT NULL,
  began_at        timestamptz,
  anchors         int NOT NULL,
  anchors_missing int NOT NULL,
  compared_before int NOT NULL,
  compared_after  int NOT NULL,
  meaning         jsonb NOT NULL,
  found_at        timestamptz NOT NULL DEFAULT now(),
  is_event        boolean NOT NULL,     -- whether to publish it: a change that was not published before
  published_at    timestamptz
);
CREATE INDEX drift_findings_of_chain ON drift_findings (chain_id, criteria, found_at DESC);
CREATE INDEX drift_findings_recent ON drift_findings (found_at DESC);
CREATE INDEX drift_findings_unpublished ON drift_findings (found_at) WHERE is_event AND published_at IS NULL;

-- Last check of a chain for a change under one judge; more frequent checks would raise more false alarms.
CREATE TABLE drift_watches (
  chain_id  text NOT NULL,
  criteria  text NOT NULL,
  looked_at timestamptz NOT NULL,
  PRIMARY KEY (chain_id, criteria)
)
"""


def upgrade() -> None:
    for statement in TABLES.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    op.execute("DROP TABLE drift_watches, drift_findings, anchor_sessions")
