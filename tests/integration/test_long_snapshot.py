"""
An open snapshot, such as that of `pg_dump`, keeps the index entries of published events and of claimed scores:
the relay and claims begin behind them.

The tests compare numbers of pages and use a server of their own, where no other transaction holds up a floor.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from builders import UNPUBLISHED, Scoring, connected, session_completed
from full_database import buffers_of
from infrastructure import Postgres
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.kafka.connect import Headers
from tarsy_scoring.kafka.publisher import Publisher
from tarsy_scoring.outbox import outbox
from tarsy_scoring.outbox.outbox import NewEvent
from tarsy_scoring.outbox.relay import LIMIT, Relay
from tarsy_scoring.queue import backlog, claims
from tarsy_scoring.telemetry.metrics import Metrics

EMIT_MANY = """
INSERT INTO scoring_events (score_id, session_id, sequence, type, payload)
SELECT $1, 'session-1', 1000000 + n, 'scoring.progress', jsonb_build_object('type', 'scoring.progress',
  'event_id', gen_random_uuid(), 'timestamp', '2026-03-02T10:15:31Z', 'session_id', 'session-1')
FROM generate_series($2::int, $3::int) n
"""
PASS = {
    "assign": (outbox.ASSIGN_POSITIONS, f"{LIMIT}, false, 'relay', 'public'"),
    "raise": (outbox.RAISE_ENTRY, str(10**9)),
    "unpublished": (outbox.UNPUBLISHED, str(LIMIT)),
    "backlog": (backlog.UNPUBLISHED_EVENTS, ""),
}

pytestmark = pytest.mark.usefixtures("own_postgres")


class Accepting(Publisher):
    """A publisher whose brokers acknowledge at once, except records with the key `deaf_to`."""

    deaf_to: bytes | None = None

    async def start(self, timeout_s: float) -> None: ...

    async def publish(
        self, topic: str, messages: Sequence[tuple[bytes | None, bytes | None, Headers]], timeout_s: float
    ) -> list[bool]:
        return [key != self.deaf_to for key, _, _ in messages]


@pytest.fixture
def publisher() -> Accepting:
    return Accepting(load_settings({}))


@pytest.fixture
def relay(scoring: Scoring, publisher: Accepting) -> Relay:
    return Relay(load_settings({}), scoring.database, Metrics(), publisher)


class Outbox:
    """A score whose events are emitted and published in large numbers."""

    def __init__(self, scoring: Scoring, relay: Relay, score_id: UUID) -> None:
        self._scoring, self._relay, self._score_id, self._emitted = scoring, relay, score_id, 0

    async def publish(self, events: int) -> None:
        await self._scoring.rows(EMIT_MANY, self._score_id, self._emitted + 1, self._emitted + events)
        self._emitted += events
        while await self._relay.run_once() > 0:
            pass


async def floors(scoring: Scoring) -> dict[str, int]:
    [row] = await scoring.rows("SELECT published, entry FROM relay_floor")
    return row


async def test_a_pass_costs_the_same_however_many_events_were_published_under_a_snapshot(
    scoring: Scoring, relay: Relay, own_postgres: Postgres
) -> None:
    many = Outbox(scoring, relay, (await scoring.claimed()).score_id)
    async with connected(scoring.url) as dump, connected(scoring.url) as other:
        await dump.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM scoring_events")
        await many.publish(4 * LIMIT)
        await other.execute("VACUUM ANALYZE scoring_events")  # may change the plans
        early = {name: await buffers_of(other, *statement) for name, statement in PASS.items()}

        await many.publish(12 * LIMIT)
        await other.execute("VACUUM ANALYZE scoring_events")
        late = {name: await buffers_of(other, *statement) for name, statement in PASS.items()}

    assert await floors(scoring) == {"published": 16 * LIMIT + 3, "entry": 15 * LIMIT + 3}
    assert all(late[name] <= early[name] * 1.2 for name in PASS), (early, late)


async def test_no_floor_passes_an_event_that_commits_late(scoring: Scoring, relay: Relay) -> None:
    """Its entry is smaller than those of thousands of published events."""
    many, late = Outbox(scoring, relay, (await scoring.claimed()).score_id), await scoring.claimed("late")
    async with scoring.database.transaction() as slow:
        await slow.execute("SELECT 1 FROM session_scores WHERE score_id = $1 FOR UPDATE", late.score_id)
        await outbox.emit(scoring.database, slow, [NewEvent(late.score_id, "scoring.progress", {"phase": "late"})])
        await many.publish(4 * LIMIT)
        assert (await floors(scoring))["entry"] == 0
    await many.publish(3 * LIMIT)

    assert await scoring.value(UNPUBLISHED) == 0
    assert (await floors(scoring))["entry"] > 4 * LIMIT


async def test_no_floor_passes_an_event_that_no_broker_acknowledged(
    scoring: Scoring, relay: Relay, publisher: Accepting
) -> None:
    many, publisher.deaf_to = Outbox(scoring, relay, (await scoring.claimed()).score_id), b"unheard"
    await scoring.accept(session_completed("unheard"))
    await many.publish(3 * LIMIT)

    publisher.deaf_to = None

    assert await relay.run_once() == 1
    assert await relay.run_once() == 0


async def test_floors_rise_again_on_another_server(scoring: Scoring, relay: Relay) -> None:
    """A database that was restored from a dump remembers transaction ids that its new server has not reached."""
    many = Outbox(scoring, relay, (await scoring.claimed()).score_id)
    await scoring.rows("UPDATE relay_floor SET next_entry = 1, next_xid = '4611686018427387904'")

    await many.publish(3 * LIMIT)

    assert (await floors(scoring))["entry"] > LIMIT


# --- claims --------------------------------------------------------------------------------------------

CLAIM = (
    claims.CLAIM,
    "md5('owner')::uuid, 16, 60, '{}'::text[], '{}'::text[], false, 1, 2, '{}'::text[], '{}'::text[], 3",
)
ACCEPT_MANY = Path(__file__).with_suffix(".sql").read_text("utf-8")
CHECK_AGAIN = "UPDATE claim_floor SET checked_at = now() - interval '1 min'"


async def claim_many(scoring: Scoring, scores: int) -> None:
    for _ in range(scores // 200):
        await scoring.claim(limit=200)
    await scoring.rows(CHECK_AGAIN)
    await scoring.claim(limit=0)


async def test_a_claim_costs_the_same_however_many_scores_were_claimed_under_a_snapshot(
    scoring: Scoring, own_postgres: Postgres
) -> None:
    await scoring.rows(ACCEPT_MANY, 5100)
    async with connected(scoring.url) as dump, connected(scoring.url) as other:
        await dump.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM session_scores")
        await claim_many(scoring, 1000)
        early = await buffers_of(other, *CLAIM)

        await claim_many(scoring, 4000)
        late = await buffers_of(other, *CLAIM)

    assert late <= early * 1.2


@pytest.mark.parametrize(
    "since",
    [
        pytest.param("checked_at = checked_at - interval '11 s'", id="the-next-check"),
        pytest.param("checked_at = now() + interval '1 h'", id="the-clock-was-set-back"),
    ],
)
async def test_a_score_below_the_floor_is_claimed_after(scoring: Scoring, since: str) -> None:
    """A transaction was open for very long, or the clock ran ahead."""
    await with_a_score_below_the_floor(scoring)
    assert await scoring.claim() == []

    await scoring.rows(f"UPDATE claim_floor SET {since}")

    assert [c.session_id for c in await scoring.claim()] == ["late"]


async def test_a_floor_that_cannot_be_moved_delays_and_hides_nothing(scoring: Scoring) -> None:
    """A worker froze while it moved it, or another program keeps its row locked."""
    await with_a_score_below_the_floor(scoring)
    await scoring.rows("UPDATE claim_floor SET checked_at = checked_at - interval '21 s'")
    async with connected(scoring.url) as stranger, stranger.transaction():
        await stranger.execute("SELECT FROM claim_floor FOR UPDATE")

        assert [c.session_id for c in await asyncio.wait_for(scoring.claim(), 5)] == ["late"]


async def with_a_score_below_the_floor(scoring: Scoring) -> None:
    await scoring.claimed()
    await scoring.accept(session_completed("late"))
    await scoring.rows("UPDATE session_scores SET next_attempt_at = now() - interval '1 h' WHERE status = 'pending'")
