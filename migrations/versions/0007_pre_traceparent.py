"""
The trace that a request came in, and the place in it that an event is sent with.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0007"
down_revision = "0006"
phase = "pre"


def upgrade() -> None:
    # Null where there is no trace, and for what the version before writes beside us.
    op.execute("ALTER TABLE scoring_requests ADD COLUMN traceparent text")
    op.execute("ALTER TABLE scoring_events ADD COLUMN traceparent text")


def downgrade() -> None:
    op.execute("ALTER TABLE scoring_events DROP COLUMN traceparent")
    op.execute("ALTER TABLE scoring_requests DROP COLUMN traceparent")
