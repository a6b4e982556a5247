"""The demo's example history fits the tables of this version and ends today."""

from datetime import UTC, datetime

from builders import connected
from tarsy_scoring.judge.doubt import TAMPERING_POINTS
from tarsy_scoring.timeline.files import parse_session
from tarsy_scoring.timeline.render.context import build_context
from tarsy_scoring.timeline.render.fence import new_nonce
from tarsy_scoring_lab.history import COLUMNS, DAYS, fill, read

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


async def test_every_stored_column_exists_and_the_days_are_shifted(database_url: str) -> None:
    """If it fails after a change of the tables: `make history`."""
    filled = await fill(database_url, NOW)

    async with connected(database_url) as connection:
        for table, rows in read()["tables"].items():
            columns = {name for name, _ in await connection.fetch(COLUMNS, table)}
            assert {name for row in rows for name in row} <= columns, table
        first, last = await connection.fetchrow("SELECT min(created_at), max(created_at) FROM session_scores")
    assert (NOW - first).days == DAYS
    assert last < NOW
    assert filled.day(DAYS) == "2026-03-01"


async def test_a_score_with_suspicious_text_has_the_text_and_both_judgements(database_url: str) -> None:
    filled = await fill(database_url, NOW)
    sessions = {session["session_id"]: session for session in filled.sessions}

    async with connected(database_url) as connection:
        flagged = await connection.fetch(
            """SELECT session_id, total_score, (samples->0->>'total_score')::int AS unmasked,
                 flags ? 'tampering_suspected' AS is_tampered
               FROM session_scores WHERE flags ? 'injection_suspected'"""
        )
    assert sessions.keys() == {score["session_id"] for score in flagged}
    for score in flagged:
        context = build_context(parse_session(sessions[score["session_id"]]), new_nonce(), 10**9)
        assert context.injections
        assert score["is_tampered"] == (abs(score["unmasked"] - score["total_score"]) >= TAMPERING_POINTS)
