"""
A token factor is of a model: another one under the same provider's name begins anew.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0003"
down_revision = "0002"
phase = "pre"


def upgrade() -> None:
    # Null for what was learned before: nobody knows of which model.
    op.execute("ALTER TABLE provider_states ADD COLUMN token_model text")


def downgrade() -> None:
    op.execute("ALTER TABLE provider_states DROP COLUMN token_model")
