"""
Published events are known by a position, `relay_floor.published`, and no longer by a mark in each row.

Phase: pre (additive; run before the version that needs it).
"""

from alembic import op

revision = "0021"
down_revision = "0020"
phase = "pre"

# The version before also reads above the floor, so the index of positions serves it as well. A row is written
# twice, on different pages: no space of a page needs to be kept free for it.
UP = (
    "DROP INDEX scoring_events_unpublished",
    "ALTER TABLE scoring_events SET (fillfactor = 100)",
)
DOWN = (
    "UPDATE scoring_events e SET published_at = now() FROM relay_floor f "
    "WHERE e.published_at IS NULL AND e.position <= f.published",
    "ALTER TABLE scoring_events SET (fillfactor = 70)",
    "CREATE INDEX scoring_events_unpublished ON scoring_events (position) WHERE published_at IS NULL",
)


def upgrade() -> None:
    for statement in UP:
        op.execute(statement)


def downgrade() -> None:
    for statement in DOWN:
        op.execute(statement)
