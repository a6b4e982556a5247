"""Scoring events, from the transaction that makes them true to their positions: in order, without gaps."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest

from builders import Scoring, open_scoring, rescore, session_completed, step
from infrastructure import wait_until
from tarsy_scoring.outbox import outbox
from tarsy_scoring.outbox.outbox import NewEvent, OutboxEvent
from tarsy_scoring.postgres.database import Connection


async def assign_positions(scoring: Scoring, limit: int = 1000) -> int:
    assigned = await outbox.assign_positions(scoring.database, limit)
    assert assigned is not None, "no other relay"
    return assigned[1]


async def assign_within(scoring: Scoring, connection: Connection, limit: int) -> None:
    """Assign positions in a transaction that stays open."""
    await connection.execute(scoring.database.sql(outbox.ASSIGN_POSITIONS), limit, True, "", "")


async def unpublished(scoring: Scoring, limit: int = 1000) -> list[OutboxEvent]:
    return await scoring.database.once(lambda c: outbox.unpublished(scoring.database, c, limit))


async def mark(scoring: Scoring, *positions: int) -> None:
    async def work(connection: Connection) -> None:
        waiting = await outbox.unpublished(scoring.database, connection, 1000)
        done = [OutboxEvent(position, "session-1", {}) for position in positions]
        await outbox.mark_published(scoring.database, connection, waiting, done)

    await scoring.database.once(work)


async def positions(scoring: Scoring) -> list[int | None]:
    """Positions in the order in which the events were written."""
    return [r["position"] for r in await scoring.rows("SELECT position FROM scoring_events ORDER BY entry")]


def progress(score_id: Any, phase: str = "storing") -> NewEvent:
    return NewEvent(score_id, "scoring.progress", {"phase": phase})


# --- writing -------------------------------------------------------------------------------------------


async def test_sequence_grows_by_one_whoever_writes(scoring: Scoring) -> None:
    claimed = await scoring.claimed()
    async with AsyncExitStack() as stack:
        writers = [await stack.enter_async_context(open_scoring(scoring.url, pool_size=1)) for _ in range(8)]
        await asyncio.gather(
            *(w.store.record(step(claimed, f"phase-{n}-{m}")) for n, w in enumerate(writers) for m in range(10))
        )

    sequences = await scoring.rows("SELECT sequence FROM scoring_events ORDER BY entry")
    assert [r["sequence"] for r in sequences] == list(range(1, 84))


async def test_a_rolled_back_transaction_leaves_no_event(scoring: Scoring) -> None:
    claimed = await scoring.claimed()

    async def fail(connection: Connection) -> None:
        await outbox.emit(scoring.database, connection, [progress(claimed.score_id)])
        await assign_within(scoring, connection, 1000)
        raise asyncpg.DataError("the work behind the event failed")

    with pytest.raises(asyncpg.DataError):
        await scoring.database.once(fail)
    await scoring.store.record(step(claimed, "storing"))
    await assign_positions(scoring)

    assert await scoring.events() == ["queued", "started", "gathering_context", "storing"]
    assert [e.payload["sequence"] for e in await unpublished(scoring)] == [1, 2, 3, 4]
    assert await positions(scoring) == [1, 2, 3, 4]


# --- positions -----------------------------------------------------------------------------------------


async def test_positions_have_no_gaps(scoring: Scoring) -> None:
    await scoring.accept(*(session_completed(f"session-{n}") for n in range(10)))

    assert [await assign_positions(scoring, limit) for limit in (3, 1, 100, 100)] == [3, 1, 6, 0]
    await scoring.accept(rescore("another"))
    assert await assign_positions(scoring) == 1

    assert await positions(scoring) == list(range(1, 12))
    assert await scoring.value("SELECT position FROM relay_position") == 11


async def test_a_transaction_that_commits_late_gets_later_positions(scoring: Scoring) -> None:
    """Its event was written first, and is not skipped."""
    await scoring.accept(session_completed("early"), session_completed("late"))
    await assign_positions(scoring)
    late, early = await scoring.rows("SELECT score_id FROM session_scores ORDER BY session_id DESC")

    async with scoring.database.transaction() as older:
        await outbox.emit(scoring.database, older, [progress(late["score_id"], "late")])
        await scoring.database.once(lambda c: outbox.emit(scoring.database, c, [progress(early["score_id"], "early")]))
        assert await assign_positions(scoring) == 1
        assert await assign_positions(scoring) == 0
    assert await assign_positions(scoring) == 1

    phases = [e.payload["phase"] for e in await unpublished(scoring)]
    assert phases == ["queued", "queued", "early", "late"]
    assert sorted(p or 0 for p in await positions(scoring)) == [1, 2, 3, 4]


async def test_concurrent_relays_assign_each_position_once(scoring: Scoring) -> None:
    """A relay that lost its lock without noticing competes with the new one."""
    await scoring.accept(*(session_completed(f"session-{n}") for n in range(3)))
    async with scoring.database.transaction() as first:
        await assign_within(scoring, first, 2)
        second = asyncio.create_task(assign_positions(scoring))
        await wait_until(scoring.backends_waiting_for_a_lock, 30, "the second waits for the first")
    assert await second == 1

    assert await positions(scoring) == [1, 2, 3]
    assert await scoring.value("SELECT position FROM relay_position") == 3


# --- publication by the relay --------------------------------------------------------------------------


async def test_acknowledged_events_are_not_sent_again(scoring: Scoring) -> None:
    await scoring.accept(*(session_completed(f"session-{n}") for n in range(5)))
    assert await unpublished(scoring) == [], "without a position"
    await assign_positions(scoring)

    assert [e.position for e in await unpublished(scoring, limit=3)] == [1, 2, 3]
    await mark(scoring, 1, 3)

    assert [e.position for e in await unpublished(scoring)] == [2, 4, 5]
    await mark(scoring, 2)
    assert [e.position for e in await unpublished(scoring)] == [4, 5], "3 was acknowledged before"
