"""
The ledger of missing tools: what was decided about names and tools, and which tools the agents of a session had.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0010"
down_revision = "0009"
phase = "pre"

TABLES = """
-- Names that belong together, or are kept apart. Nothing is changed or removed: of each name the last row counts.
CREATE TABLE tool_merges (
  merge_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name         text NOT NULL,                    -- as it was written
  name_key     text NOT NULL,                    -- what all its spellings have in common
  tool         text NOT NULL,                    -- the tool that it belongs to; itself: it is kept apart
  is_automatic boolean NOT NULL DEFAULT false,   -- by its spelling, kept since somebody decided about the tool
  decided_by   text NOT NULL,
  decided_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX tool_merges_of_name ON tool_merges (name_key, merge_id DESC);

-- What people said about a tool; the last row counts. Whether it is still missed is measured and stands nowhere.
CREATE TABLE tool_states (
  state_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tool     text NOT NULL,
  tool_key text NOT NULL,
  state    text NOT NULL CHECK (state IN ('open', 'planned', 'built')),
  since    timestamptz NOT NULL,                 -- from when on: a tool may have been there before somebody said so
  said_by  text NOT NULL,
  said_at  timestamptz NOT NULL DEFAULT now(),
  note     text
);
CREATE INDEX tool_states_of_tool ON tool_states (tool_key, state_id DESC);

-- Every set of tools that agents of a session had, under the hash of its names; sessions of a chain share one.
CREATE TABLE tool_lists (
  tools_hash    text PRIMARY KEY,
  names         text[] NOT NULL,
  first_used_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX tool_lists_names ON tool_lists USING gin (names);

-- Null: nobody knows which tools its agents had, or the version before wrote it.
ALTER TABLE session_scores ADD COLUMN tools_hash text
"""


def upgrade() -> None:
    for statement in TABLES.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    op.execute("ALTER TABLE session_scores DROP COLUMN tools_hash")
    op.execute("DROP TABLE tool_lists, tool_states, tool_merges")
