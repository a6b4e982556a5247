"""The view `score_history`, with the columns that queries of the first design name."""

from datetime import timedelta

from builders import DEFAULT_CRITERIA, HASHES, Scoring, connected
from stored import NOON, store_score

# Lets a query that says `session_scores` read the view.
AS_WRITTEN = "CREATE TEMP VIEW session_scores AS TABLE public.score_history"

TRENDS = """
SELECT DATE(scored_at), AVG(total_score), MIN(total_score), MAX(total_score), COUNT(*)
FROM session_scores WHERE criteria_hash = $1 GROUP BY DATE(scored_at) ORDER BY 1 DESC
"""
DISTRIBUTION = """
SELECT CASE WHEN total_score < 50 THEN 'low' WHEN total_score < 75 THEN 'medium' ELSE 'high' END AS score_range,
  COUNT(*), AVG((score_breakdown->>'logical_flow')::int)
FROM session_scores WHERE criteria_hash = $1 GROUP BY score_range ORDER BY score_range
"""
POINTS = {"logical_flow": 20, "consistency": 10}


async def test_queries_of_the_first_design_count_what_trends_count(scoring: Scoring) -> None:
    """One score per session and criteria: the newest that a judge gave, without trials, failures and references."""
    day = timedelta(days=1)
    await store_score(scoring, "a", 90, at=NOON - day, score_breakdown=POINTS)
    await store_score(scoring, "a", 50, score_breakdown=POINTS)
    await store_score(scoring, "b", 80, score_breakdown=POINTS | {"logical_flow": 25})
    await store_score(scoring, "b", 10, criteria="investigation-outcome")
    await store_score(scoring, "b", 11, purpose="shadow", at=NOON + day)
    await store_score(scoring, "b", 12, reference={"text": "disk"}, at=NOON + day)
    await store_score(scoring, "c", 30, at=NOON - day, score_breakdown=POINTS)
    await store_score(scoring, "c", status="failed", error_kind="refused")
    await store_score(scoring, "d")

    async with connected(scoring.url) as connection:
        await connection.execute(AS_WRITTEN)
        trends, distribution = [
            [tuple(row) for row in await connection.fetch(sql, HASHES[DEFAULT_CRITERIA])]
            for sql in (TRENDS, DISTRIBUTION)
        ]

    assert trends == [(NOON.date(), 65, 50, 80, 2), ((NOON - day).date(), 30, 30, 30, 1)]
    assert distribution == [("high", 1, 25), ("low", 1, 20), ("medium", 1, 20)]
