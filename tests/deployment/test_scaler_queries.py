"""The queries that KEDA scales by, as the chart renders them, on real tables."""

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
from deploying import REPOSITORY, Objects

from builders import connected
from full_database import filled_database
from infrastructure import Postgres

# 7 due scores, 2 of them bulk: the oldest bulk score is due for an hour, the oldest of the others for 120 s.
# 4 scores are due later, 3 are in progress, and the rest ended long ago.
FILL = Path(__file__).with_suffix(".sql").read_text("utf-8")


@pytest.fixture(scope="module")
def queue_url(postgres: Postgres, _migrated_template: str) -> Iterator[str]:
    with filled_database(postgres, _migrated_template, FILL) as url:
        yield url


@pytest.fixture
async def connection(queue_url: str) -> AsyncIterator[asyncpg.Connection]:
    async with connected(queue_url) as connection:
        yield connection


@pytest.fixture
def queries(charts: dict[str, Objects]) -> list[str]:
    """The queries for depth and for age."""
    spec = charts["everything"].one("ScaledObject", "scoring-worker")["spec"]
    return [trigger["metadata"]["query"] for trigger in spec["triggers"]]


async def test_depth_counts_due_and_running_scores(connection: asyncpg.Connection, queries: list[str]) -> None:
    assert await connection.fetchval(queries[0]) == 7 + 3


async def test_age_is_that_of_the_oldest_due_score(connection: asyncpg.Connection, queries: list[str]) -> None:
    assert 120 <= await connection.fetchval(queries[1]) < 300


async def test_age_asks_for_no_more_workers_than_scores(connection: asyncpg.Connection, queries: list[str]) -> None:
    """One score that has waited for an hour needs one worker, not sixty: 60 s are one worker's share."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute("""
            UPDATE session_scores SET next_attempt_at = now() + CASE session_id
              WHEN 'session-7' THEN interval '-1 hour' ELSE interval '1 hour' END
            WHERE status = 'pending' AND priority < 2
        """)
        assert await connection.fetchval(queries[1]) == 60
    finally:
        await transaction.rollback()


async def test_the_documented_grants_suffice_for_the_scaler(connection: asyncpg.Connection, queries: list[str]) -> None:
    page = (REPOSITORY / "docs" / "deployment.md").read_text()
    (grants,) = re.findall(r"```sql\n(.*?)```", page, flags=re.DOTALL)
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(f"CREATE ROLE scaler; {grants} SET LOCAL ROLE scaler")
        assert await connection.fetchval(queries[0]) == 7 + 3
        assert await connection.fetchval(queries[1]) > 0
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.fetch("SELECT score_analysis FROM session_scores")
    finally:
        await transaction.rollback()
