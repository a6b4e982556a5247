"""Clean-up passes over rows that are still needed, and goes on behind them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from builders import Scoring
from stored import store_score
from tarsy_scoring.retention import pruning as retention
from tarsy_scoring.retention.pruning import Pruner

YEAR = datetime.now(UTC) - timedelta(days=365)
KEEP = {"scores": 180, "events": 180}

# Stands for requests that commit between the search for old sessions and the check of those that were locked.
ASKED_MEANWHILE = Path(__file__).with_suffix(".sql").read_text("utf-8")


async def prune(scoring: Scoring) -> dict[str, int]:
    removed = await Pruner(scoring.database, KEEP, rest=AsyncMock(side_effect=AssertionError("nobody judges"))).run()
    return {part: number for part, number in removed.items() if number}


@pytest.mark.parametrize("position", [pytest.param(None, id="without-a-position"), pytest.param(1, id="unpublished")])
async def test_scores_and_sessions_with_unpublished_events_stay(scoring: Scoring, position: int | None) -> None:
    """The brokers were away for longer than the retention; the ends are announced all the same."""
    alone = await store_score(scoring, "alone", 67, at=YEAR)
    former = await store_score(scoring, "again", status="failed", at=YEAR)
    await store_score(scoring, "again", 67, at=datetime.now(UTC))
    await store_score(scoring, "announced", 67, at=YEAR)
    for n, score_id in enumerate((alone, former)):
        await scoring.rows(
            "INSERT INTO scoring_events (score_id, session_id, sequence, position, type, payload, created_at) "
            "SELECT score_id, session_id, 1, $2::bigint, 'scoring.completed', '{}', $3 FROM session_scores "
            "WHERE score_id = $1",
            score_id,
            position and position + n,
            YEAR,
        )

    assert await prune(scoring) == {"sessions": 1}
    assert await scoring.value("SELECT count(*) FROM scoring_events") == 2

    await scoring.rows("UPDATE scoring_events SET published_at = now()")
    assert await prune(scoring) == {"sessions": 1, "scores": 1}


async def test_sessions_that_were_all_asked_for_meanwhile_do_not_end_the_clean_up(
    scoring: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They fill the first page; the old ones behind them are removed."""
    for n in range(retention.SESSIONS.batch):
        await store_score(scoring, f"asked-{n}", 67, at=YEAR - timedelta(days=1, minutes=n))
    for n in range(3):
        await store_score(scoring, f"old-{n}", 67, at=YEAR)
    monkeypatch.setattr(retention, "STILL_OLD", ASKED_MEANWHILE)

    assert await prune(scoring) == {"sessions": 3}
