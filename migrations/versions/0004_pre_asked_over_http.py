"""
Requests over HTTP: the answers kept under idempotency keys, and the audit record of changes by callers.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0004"
down_revision = "0003"
phase = "pre"

TABLES = """
-- The first answer under each `Idempotency-Key` of a caller, for a day.
CREATE TABLE kept_answers (
  caller      text NOT NULL,
  key         text NOT NULL,
  asked_hash  text NOT NULL,  -- of the whole request
  outcome     text NOT NULL,
  score_id    uuid NOT NULL REFERENCES session_scores ON DELETE CASCADE,
  request_id  uuid NOT NULL,
  answer      text,           -- null until the first answer is stored
  answered_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (caller, key)
);
CREATE INDEX kept_answers_age ON kept_answers (answered_at);
CREATE INDEX kept_answers_score ON kept_answers (score_id);

-- Changes that callers made through the API. No reference to scores, which retention may delete earlier.
CREATE TABLE changes (
  change_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  changed_at timestamptz NOT NULL DEFAULT now(),
  changed_by text NOT NULL,
  change     text NOT NULL CHECK (change IN ('score', 'rescore', 'cancel', 'label')),
  session_id text NOT NULL REFERENCES sessions ON DELETE CASCADE,
  score_id   uuid NOT NULL,
  request_id uuid
);
CREATE INDEX changes_of_session ON changes (session_id, changed_at DESC);
CREATE INDEX changes_recent ON changes (changed_at DESC);
"""


def upgrade() -> None:
    for statement in TABLES.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    op.execute("DROP TABLE changes, kept_answers")
