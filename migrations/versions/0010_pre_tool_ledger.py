"""
The ledger of missing tools: decisions about names and tools, and the tools that the agents of a session had.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0010"
down_revision = "0009"
phase = "pre"

TABLES = """
-- Names of one tool, and names kept apart. Rows are never changed or removed; the last row of a name counts.
CREATE TABLE tool_merges (
  merge_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name         text NOT NULL,                    -- as it was written
  name_key     text NOT NULL,                    -- the normalised name, equal for all its spellings
  tool         text NOT NULL,                    -- tool of the name; the name itself: it is kept apart
  is_automatic boolean NOT NULL DEFAULT false,   -- merged by spelling, at a decision about the tool
  decided_by   text NOT NULL,
  decided_at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX tool_merges_of_name ON tool_merges (name_key, merge_id DESC);

-- States that people set for a tool; the last row counts. Whether it is still missed is measured.
CREATE TABLE tool_states (
  state_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tool     text NOT NULL,
  tool_key text NOT NULL,
  state    text NOT NULL CHECK (state IN ('open', 'planned', 'built')),
  since    timestamptz NOT NULL,                 -- start of the state, which may be earlier than the decision
  said_by  text NOT NULL,
  said_at  timestamptz NOT NULL DEFAULT now(),
  note     text
);
CREATE INDEX tool_states_of_tool ON tool_states (tool_key, state_id DESC);

-- Sets of tools that agents had, under the hash of their names; many sessions share a set.
CREATE TABLE tool_lists (
  tools_hash    text PRIMARY KEY,
  names         text[] NOT NULL,
  first_used_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX tool_lists_names ON tool_lists USING gin (names);

-- Null: the tools of the agents are unknown, or an earlier version wrote the score.
ALTER TABLE session_scores ADD COLUMN tools_hash text
"""


def upgrade() -> None:
    for statement in TABLES.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    op.execute("ALTER TABLE session_scores DROP COLUMN tools_hash")
    op.execute("DROP TABLE tool_lists, tool_states, tool_merges")
