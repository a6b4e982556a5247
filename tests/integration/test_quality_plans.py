"""Statements about labels, the review list, trust cards and missing tools find their rows by an index."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime

import asyncpg
import pytest

from builders import connected
from full_database import filled_database, indexes, plan_of, scanned
from infrastructure import Postgres
from quality_rows import filling
from tarsy_scoring.analytics import needs_attention as unscored
from tarsy_scoring.analytics import week
from tarsy_scoring.labels import labels, review
from tarsy_scoring.missing_tools import decisions, reasons

SCORES = 24_000
# Tables that may be read whole: they hold decisions of people and sets of tools, which are few.
FEW = {"scoring_criteria", "tool_states", "tool_merges"}
NOW = datetime.now(UTC)
A_SCORE = "md5('score-23999')::uuid"


# Name: statement, its arguments as SQL, the indexes that must carry it.
STATEMENTS = {
    "label-subject": (labels.SUBJECT, A_SCORE, {"session_scores_pkey"}),
    "label-lock": (labels.LOCK_SESSION, A_SCORE, {"sessions_pkey", "session_scores_pkey"}),
    "label-add": (
        labels.ADD,
        f"{A_SCORE}, 'ada', true, NULL, NULL, NULL, 5, 'api'",
        {"session_scores_pkey", "session_scores_by_time"},
    ),
    "labels-of-score": (labels.OF_SCORE, f"{A_SCORE}, 21", {"score_labels_of_score"}),
    "labels-of-scores": (labels.LAST_OF_SCORES, f"ARRAY[{A_SCORE}]", {"score_labels_of_score"}),
    "scores-by-judge": (labels.SCORES_BY_JUDGE, "'{s-1,s-2,s-3}', NULL, NULL", set()),
    "review": (review.REVIEW, "interval '6 days'", {"session_scores_by_time", "score_labels_of_score"}),
    "ledger-said": (decisions.LAST_STATES, "", set()),
    "ledger-merges": (decisions.LAST_MERGES, "", set()),
    "tool-reasons": (
        reasons.NEWEST,
        "NULL, NULL, NULL, NULL, 2000, '{get_thing_1}', '{0}'",
        {"session_scores_by_time", "score_missing_tools_looked_at"},
    ),
    "week-failed": (
        unscored.FAILED,
        "now() - interval '7 days', 2000",
        {"session_scores_failed", "session_scores_of_session"},
    ),
    "week-waiting": (unscored.WAITING, "10000", {"session_scores_due"}),
    "week-lowest": (
        week.LOWEST,
        "'{chain-7}', now() - interval '7 days', '{tampering_suspected}'",
        {"session_scores_judged", "sessions_pkey"},
    ),
}


@pytest.fixture(scope="module")
def full_url(postgres: Postgres, _migrated_template: str) -> Iterator[str]:
    """A year of scores of 200 chains, with labels; tests only read it."""
    # Leave few labels, in proportion to the few scores.
    fill = filling(SCORES, 200) + "DELETE FROM score_labels WHERE label_id % 20 <> 0;"
    with filled_database(postgres, _migrated_template, fill) as url:
        yield url


@pytest.fixture
async def connection(full_url: str) -> AsyncIterator[asyncpg.Connection]:
    async with connected(full_url) as opened:
        yield opened


async def test_every_statement_uses_its_indexes(connection: asyncpg.Connection) -> None:
    """No table of scores, sessions, labels or picks is read from end to end."""
    for name, (statement, arguments, wanted) in STATEMENTS.items():
        nodes = await plan_of(connection, statement, arguments)

        assert (name, scanned(nodes) - FEW, wanted - indexes(nodes)) == (name, set(), set()), nodes
