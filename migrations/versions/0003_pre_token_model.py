"""
The model that a provider's token factor was learned from; the factor starts again when the model changes.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0003"
down_revision = "0002"
phase = "pre"


def upgrade() -> None:
    # Null for factors learned before this revision, whose model is unknown.
    op.execute("ALTER TABLE provider_states ADD COLUMN token_model text")


def downgrade() -> None:
    op.execute("ALTER TABLE provider_states DROP COLUMN token_model")
