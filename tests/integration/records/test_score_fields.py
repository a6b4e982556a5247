"""A column of a score is declared in one place."""

from builders import Scoring
from tarsy_scoring.scores.shapes import SHOWN_COLUMNS

# Columns of the queue's own work, which no document of an ended score shows.
WORK_COLUMNS = """
attempts_burned chain_is_named lease_expires_at lease_owner lease_token losses next_attempt_at nonce
priority reference_id spent_s stage_id waiting_for_text waiting_reason
"""


async def test_every_column_is_declared_once(scoring: Scoring) -> None:
    """A column outside the declaration would be neither written nor shown."""
    rows = await scoring.rows("SELECT column_name FROM information_schema.columns WHERE table_name = 'session_scores'")
    declared = [*SHOWN_COLUMNS, *WORK_COLUMNS.split()]

    assert sorted(declared) == sorted(row["column_name"] for row in rows)
