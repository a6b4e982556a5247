"""
Up to where each destination has its notifications, and what is noticed beside the ends of scores.

`budget_days.spent_at` is when a call was first refused until the next day.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0033"
down_revision = "0032"
phase = "pre"

TABLES = """
-- What to notify of, beside scoring events. Ids grow in the order of commits, because one lock is held to add rows.
CREATE TABLE notices (
  notice_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  event_id   uuid NOT NULL UNIQUE,
  type       text NOT NULL CHECK (type IN ('drift', 'budget_spent')),
  chain_id   text,                      -- null: all chains
  details    jsonb NOT NULL,
  noticed_at timestamptz NOT NULL DEFAULT now()
);

-- Up to which scoring event and which notice a destination has everything, and which process delivers to it.
CREATE TABLE delivery_bookmarks (
  destination      text PRIMARY KEY,
  position         bigint NOT NULL,
  notice_id        bigint NOT NULL,
  lease_owner      uuid,
  lease_expires_at timestamptz NOT NULL DEFAULT '-infinity'
);

ALTER TABLE budget_days ADD COLUMN spent_at timestamptz
"""


def upgrade() -> None:
    for statement in TABLES.split(";\n"):
        if statement.strip():
            op.execute(statement)


def downgrade() -> None:
    op.execute("ALTER TABLE budget_days DROP COLUMN spent_at")
    op.execute("DROP TABLE delivery_bookmarks, notices")
