"""
The trace context of a request, and the one that an event is published with.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0007"
down_revision = "0006"
phase = "pre"


def upgrade() -> None:
    # Null without a trace, and in rows that the version before writes during a rollout.
    op.execute("ALTER TABLE scoring_requests ADD COLUMN traceparent text")
    op.execute("ALTER TABLE scoring_events ADD COLUMN traceparent text")


def downgrade() -> None:
    op.execute("ALTER TABLE scoring_events DROP COLUMN traceparent")
    op.execute("ALTER TABLE scoring_requests DROP COLUMN traceparent")
