"""
What a pending score waits for, in words, and what second turns have cost.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0030"
down_revision = "0029"
phase = "pre"


# No row is read or written: columns that are null, or have a constant default, change the catalogue alone.
def upgrade() -> None:
    op.execute("ALTER TABLE session_scores ADD COLUMN waiting_for_text text")
    op.execute(
        "ALTER TABLE provider_states ADD COLUMN second_turn_model text, "
        "ADD COLUMN second_turn_shares double precision[] NOT NULL DEFAULT '{}'"
    )


def downgrade() -> None:
    op.execute("ALTER TABLE provider_states DROP COLUMN second_turn_model, DROP COLUMN second_turn_shares")
    op.execute("ALTER TABLE session_scores DROP COLUMN waiting_for_text")
