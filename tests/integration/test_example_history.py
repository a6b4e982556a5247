"""The demo's example history has the evidence behind what its pages say."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio

from builders import Scoring, open_scoring
from infrastructure import Postgres, fresh_database
from tarsy_scoring.judge.assess import TAMPERING_POINTS
from tarsy_scoring.studies.findings import read_findings
from tarsy_scoring.timeline.files import parse_session
from tarsy_scoring.timeline.render.context import build_context
from tarsy_scoring.timeline.render.fence import new_nonce
from tarsy_scoring_lab.history import (
    CHAINS,
    DATABASES,
    JUDGE_DAY,
    LOST_DAY,
    LOST_POINTS,
    LOST_TOOL,
    PAYMENTS,
    PROMPT_DAY,
    Filled,
    fill,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def history(postgres: Postgres, _migrated_template: str) -> AsyncIterator[tuple[Scoring, Filled]]:
    with fresh_database(postgres, _migrated_template) as url:
        async with open_scoring(url) as scoring:
            yield scoring, await fill(scoring.database, NOW)


async def test_drift_is_found_when_a_worker_of_that_time_would_have_found_it(history: tuple[Scoring, Filled]) -> None:
    """Within two weeks of each change of the chain, and nothing in the last week, in which nothing changes."""
    scoring, filled = history

    found = await read_findings(scoring.database, PAYMENTS)

    first = {finding.look: finding.found_at for finding in found}  # the oldest of each look is the last one
    for look, day in (("anchors", JUDGE_DAY), ("watch", PROMPT_DAY)):
        days = (first[look] - filled.beginning) / timedelta(days=1)
        assert day < days <= day + 14, look
    assert all(finding.found_at < NOW - timedelta(days=7) for finding in await read_findings(scoring.database))


async def test_a_score_with_suspicious_text_has_the_text_and_both_judgements(history: tuple[Scoring, Filled]) -> None:
    """The session can be read, and the total without the text counts where the judge obeyed it."""
    scoring, filled = history
    sessions = {session["session_id"]: session for session in filled.sessions}
    flagged = await scoring.rows("SELECT * FROM session_scores WHERE flags ? 'injection_suspected'")
    assert sessions.keys() == {score["session_id"] for score in flagged}

    obeyed = 0
    for score in flagged:
        session = sessions[score["session_id"]]
        context = build_context(parse_session(session), new_nonce(), 10**9)
        [sample] = score["samples"]
        turns = await scoring.reader.replies(score["score_id"])
        assert context.injections
        assert [turn["kind"] for turn in turns] == ["analysis", "masked", "missing_tools"]
        assert all(turn["reply"].startswith("Example data") for turn in turns)
        assert session["labels"]["data"] == "example"
        is_moved = abs(sample["total_score"] - score["total_score"]) >= TAMPERING_POINTS
        assert ("tampering_suspected" in score["flags"]) == is_moved
        obeyed += is_moved
    assert 0 < obeyed < len(flagged)


async def test_chains_with_a_threshold_have_outcomes(history: tuple[Scoring, Filled]) -> None:
    scoring, _ = history
    wanted = {name: chain["pass_threshold"] for name, chain in CHAINS.items() if "pass_threshold" in chain}
    rows = await scoring.rows(
        "SELECT DISTINCT chain_id, total_score >= pass_threshold AS reaches, outcome, pass_threshold "
        "FROM session_scores WHERE outcome IS NOT NULL"
    )
    assert {(row["chain_id"], row["pass_threshold"]) for row in rows} == set(wanted.items())
    assert {(row["reaches"], row["outcome"]) for row in rows} == {(True, "pass"), (False, "fail")}


async def test_sessions_without_the_lost_tool_explain_the_fall_of_their_chain(
    history: tuple[Scoring, Filled],
) -> None:
    """In its last week, scores that miss the tool are far lower than the others, which are as before."""
    scoring, filled = history
    lost = filled.beginning + timedelta(days=LOST_DAY)

    rows = await scoring.rows(
        """SELECT s.created_at >= $2 AS is_after, t.score_id IS NOT NULL AS misses_it,
             avg(s.total_score)::float8 AS mean, count(*) FILTER (WHERE s.interaction->'by_tool' ? $3) AS used_it
           FROM session_scores s LEFT JOIN score_missing_tools t ON t.score_id = s.score_id AND t.tool_name = $3
           WHERE s.chain_id = $1 AND s.total_score IS NOT NULL GROUP BY 1, 2""",
        DATABASES,
        lost,
        LOST_TOOL,
    )

    mean = {(row["is_after"], row["misses_it"]): row["mean"] for row in rows}
    assert mean[True, True] < mean[True, False] - LOST_POINTS / 2
    assert abs(mean[True, False] - mean[False, False]) < 10
    assert {row["is_after"] for row in rows if row["used_it"]} == {False}


async def test_the_page_of_a_score_counts_labels_near_its_total(history: tuple[Scoring, Filled]) -> None:
    scoring, _ = history
    score_id = await scoring.value(
        "SELECT score_id FROM session_scores WHERE total_score = 69 AND chain_id = $1 LIMIT 1", PAYMENTS
    )
    document = await scoring.reader.score(score_id)
    assert document is not None

    shown = await scoring.reader.with_labels_nearby(document)

    assert shown["labels_nearby"]["labelled"] >= 10
