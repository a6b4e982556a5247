"""Daily counts equal the scores after every change of a score, and while days are counted again."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, get_args
from unittest.mock import AsyncMock

import pytest
from structlog.testing import capture_logs

import counted_again
from builders import (
    DEFAULT_CRITERIA,
    OTHER_CRITERIA,
    Scoring,
    completion,
    connected,
    failure,
    rescore,
    session_completed,
)
from stored import NOON, store_score
from tarsy_scoring.analytics import analytics, recount
from tarsy_scoring.analytics.analytics import DayOf, TrendPoint
from tarsy_scoring.analytics.chain_averages import ChainAverages, every_chain
from tarsy_scoring.analytics.daily import FIRST_DAY, MOST_DIRTY, NO_DAY, Selection, count_recounted, split
from tarsy_scoring.analytics.recount import RECOUNT_LOCK, mark_all, recount_all, run_recounts
from tarsy_scoring.judge.verdict import MissingTool
from tarsy_scoring.missing_tools import demand
from tarsy_scoring.retention.erasure import erase
from tarsy_scoring.retention.pruning import Pruner
from tarsy_scoring.scores.bands import DEFAULT_BANDS

TABLES = ("daily_counts", "daily_sums", "daily_names")


async def content(scoring: Scoring) -> list[list[str]]:
    """Rows of the three tables, in an order of its own."""
    return [[row["t"] for row in await scoring.rows(f"SELECT t::text FROM {t} t ORDER BY 1")] for t in TABLES]


async def assert_recounted(scoring: Scoring) -> None:
    """The counts of past days are those of a recount of all days."""
    await recount_all(scoring.database)
    found = await content(scoring)

    await mark_all(scoring.database)
    await recount_all(scoring.database)

    assert found == await content(scoring)


# --- the law -------------------------------------------------------------------------------------------

CATEGORIES: tuple[Any, ...] = ({"a": 10, "b": 7.5}, {"a": 3}, {"b": "no number", "c": 0.1}, None)
GATES = ([], [], [{"name": "quiet", "gate_type": "script", "passed": True, "message": "as asked"}])
FLAGS = ([], ["ungrounded"], ["outcome_missing"], ["outcome_score_mismatch"], ["tampering_suspected"])
TAGS = ([], ["slow"], ["slow", "wrong_tool", "slow"])
REFERENCES: tuple[Any, ...] = (None, None, {"source_url": None, "provided_by": "ada", "provided_at": "2026-01-01"})
INTERACTIONS: tuple[Any, ...] = (
    None,
    {"agent_tokens": None, "duration_s": 61.7, "agent_cost_usd": None},
    {"agent_tokens": {"input": 10**19, "output": 20}, "duration_s": None, "agent_cost_usd": 0.3},
)
TOOLS = ((), ("get_logs",), ("get_logs", "Get Logs"), ("trace", "get_logs", "trace"))


class Changes:
    """Random changes of few sessions, as the service and a database administrator make them."""

    def __init__(self, scoring: Scoring, draw: random.Random) -> None:
        self.scoring, self.draw = scoring, draw
        self.all: list[Callable[[], Awaitable[Any]]] = [
            *[self.score] * 12,
            *[self.move] * 3,
            self.score_together,
            self.fail,
            *[self.ended_earlier] * 2,
            self.erase,
            self.prune,
            self.recount,
        ]

    @property
    def session(self) -> str:
        return f"session-{self.draw.randrange(5)}"

    def ending(self, claimed: Any) -> Any:
        choose = self.draw.choice
        return completion(
            claimed,
            missing_tools=[MissingTool(name, "because") for name in choose(TOOLS)],
            total_score=choose((None, 0, 40, 67, 100)),
            score_breakdown=choose(CATEGORIES),
            rubric=choose((None, {"scores": {"depth": 0.3}})),
            flags=choose(FLAGS),
            failure_tags=choose(TAGS),
            judge_fingerprint=choose((None, "judge-1", "judge-2")),
            reference=choose(REFERENCES),
            outcome=choose(("pass", "fail", None)),
            pass_threshold=choose((None, 60.0)),
            gates=choose(GATES),
            usage=choose((None, {"cost_usd": None}, {"cost_usd": 0.1}, {"cost_usd": 1e-7})),
            interaction=choose(INTERACTIONS),
        )

    async def claimed(self) -> Any:
        asked = rescore(
            self.session,
            chain_id=self.draw.choice(("k", "l", None)),
            criteria=self.draw.choice((DEFAULT_CRITERIA, OTHER_CRITERIA)),
            purpose=self.draw.choice(("production",) * 5 + ("shadow",)),
        )
        await self.scoring.accept(asked)
        return await self.scoring.claim()

    async def score(self) -> None:
        for claimed in await self.claimed():
            await self.scoring.store.end(self.ending(claimed))

    async def score_together(self) -> None:
        claimed = [one for _ in range(3) for one in await self.claimed()]
        await asyncio.gather(*(self.scoring.store.end(self.ending(one)) for one in claimed))

    async def fail(self) -> None:
        for claimed in await self.claimed():
            await self.scoring.store.end(failure(claimed))

    async def move(self) -> None:
        """Let all scores of a session end some days or weeks earlier, as if time had passed."""
        earlier = "UPDATE session_scores SET completed_at = completed_at - $2::interval WHERE session_id = $1"
        await self.scoring.rows(earlier, self.session, timedelta(days=self.draw.choice((0, 1, 2, 3, 40))))
        await mark_all(self.scoring.database)
        await self.recount()

    async def ended_earlier(self) -> None:
        """An event that names an earlier end of a session."""
        at = datetime.now(UTC) - timedelta(days=self.draw.randrange(5))
        await self.scoring.accept(session_completed(self.session, completed_at=at))

    async def recount(self) -> None:
        await recount_all(self.scoring.database)

    async def erase(self) -> None:
        await erase(self.scoring.database, self.scoring.leases, self.session, by="ada", relay_wait_s=0)

    async def prune(self) -> None:
        await self.scoring.rows("UPDATE scoring_events SET published_at = now()")
        await self.scoring.rows("UPDATE session_scores SET created_at = completed_at WHERE completed_at IS NOT NULL")
        await Pruner(self.scoring.database, {"scores": 3}, rest=AsyncMock()).run()


@pytest.mark.parametrize("seed", range(6))
async def test_counts_equal_a_recount_after_any_changes(scoring: Scoring, seed: int) -> None:
    draw = random.Random(seed)
    changes = Changes(scoring, draw)
    for _ in range(40):
        await draw.choice(changes.all)()

    await assert_recounted(scoring)


async def assert_counted(scoring: Scoring, of: Selection) -> None:
    """The figures of a selection are those of the scores."""
    names = TrendPoint.__slots__
    for day_of in get_args(DayOf):
        found, left_out = await analytics.trends(scoring.database, of, day_of)
        points = await counted_again.trends(scoring, of, day_of)
        assert [asdict(p) for p in found] == [{n: p[n] for n in names} for p in points if p["count"]], day_of
        assert left_out == sum(p["doubtful"] for p in points)
        assert_same_chains(
            await every_chain(scoring.database, of, day_of), await counted_again.figures(scoring, of, day_of)
        )
    shown = await analytics.distribution(scoring.database, of, lambda _: DEFAULT_BANDS)
    counts, averages = await counted_again.distribution(scoring, of, DEFAULT_BANDS)
    by_band = {(row["criteria"], row["band"]): row["count"] for row in counts if row["has_total"]}
    assert {(one.criteria, b.band): b.count for one in shown.criteria for b in one.bands if b.count} == by_band
    assert shown.without_total == sum(row["count"] for row in counts if not row["has_total"])
    listed = {
        (band, one.criteria, c.category): (c.average, c.count)
        for one in shown.criteria
        for band, stated in [(None, one.categories), *((b.band, b.categories) for b in one.bands)]
        for c in stated
    }
    expected = {(r["band"], r["criteria"], r["category"]): (r["average"], r["count"]) for r in averages}
    assert listed == {key: (pytest.approx(average), count) for key, (average, count) in expected.items()}

    chains, tagged = await counted_again.failure_tags(scoring, of)
    tags = await analytics.failure_tags(scoring.database, of)
    assert tags == analytics.tag_shares({row["chain_id"]: row["scores"] for row in chains}, tagged)

    found = await demand.read_demand(scoring.database, of)
    for names in (["get_logs"], ["Get Logs", "get_logs"], ["trace", "late"]):
        missed = Counter[str | None]()
        for one in found.of_names(name for name in names if name in found.by_name):
            missed[one.chain_id] += one.sessions
        expected = await counted_again.missed(scoring, of, names)
        assert missed == {row["chain_id"]: row["sessions"] for row in expected}, names


def assert_same_chains(found: list[ChainAverages], expected: list[dict[str, Any]]) -> None:
    assert {chain.chain_id for chain in found} == {row["chain_id"] for row in expected}
    by_chain = {chain.chain_id: chain for chain in found}
    for row in expected:
        chain = by_chain[row["chain_id"]]
        for name in ("scores", "count", "outcomes", "passed", "judges"):
            assert getattr(chain, name) == row[name], name
        assert chain.criteria == row["criteria"]
        assert chain.average == pytest.approx(row["average"])
        for name in ("judging_usd", "input_tokens", "output_tokens", "agent_usd", "duration_s"):
            assert getattr(chain, name).sum == pytest.approx(row[name]), name
        assert (chain.judging_usd.count, chain.input_tokens.count) == (row["judging_costs"], row["token_counts"])


@pytest.mark.parametrize("seed", range(4))
async def test_figures_equal_those_of_the_scores(scoring: Scoring, seed: int) -> None:
    """With clean and dirty days, and ranges that begin within a day."""
    draw = random.Random(seed)
    changes = Changes(scoring, draw)
    now = datetime.now(UTC)
    midnight = datetime.combine(now.date(), time(), UTC)
    for _ in range(8):
        for _ in range(6):
            await draw.choice(changes.all)()
        if await count_recounted(scoring.database, Selection()):
            await recount_all(scoring.database)
        for days in (None, timedelta(days=1, hours=3), timedelta(days=1), timedelta(days=55)):
            since = days and (now if days.seconds else midnight) - days
            chain, criteria = draw.choice((None, "k")), draw.choice((None, DEFAULT_CRITERIA))
            until = draw.choice((None, midnight, now - timedelta(hours=1)))
            for kind in ("without", "with"):
                await assert_counted(scoring, Selection(chain, criteria, since, until, kind))


async def test_a_day_that_is_marked_without_end_is_counted_once(
    scoring: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scoring.rows("INSERT INTO dirty_days (day) VALUES ('2026-03-10')")
    monkeypatch.setattr(recount, "UNMARK", "SELECT $1::date")  # as if a score ended on that day at once

    async with asyncio.timeout(60):
        assert await recount_all(scoring.database) == 1


async def marks(scoring: Scoring) -> list[date]:
    return [row["day"] for row in await scoring.rows("SELECT day FROM dirty_days ORDER BY day")]


async def test_a_replaced_score_marks_its_day_and_the_end_of_its_session(scoring: Scoring) -> None:
    ended, scored = NOON - timedelta(days=9), NOON - timedelta(days=2)
    await store_score(scoring, "session-1", 40, at=scored, session={"ended": ended})
    await scoring.rows("DELETE FROM dirty_days")

    await scoring.store.end(completion(await scoring.claimed("session-1")))

    assert await marks(scoring) == [ended.date(), scored.date(), datetime.now(UTC).date()]


async def test_a_score_without_a_number_for_the_analytics_marks_nothing(scoring: Scoring) -> None:
    await scoring.store.end(failure(await scoring.claimed()))

    assert not await marks(scoring)


async def test_today_keeps_one_mark(scoring: Scoring) -> None:
    today = datetime.now(UTC).date()
    for n in range(3):
        await scoring.store.end(completion(await scoring.claimed(f"session-{n}")))
    assert await marks(scoring) == [today] * 3

    assert await recount_all(scoring.database) == 0

    assert await marks(scoring) == [today]
    assert await content(scoring) == [[]] * 3


async def test_a_mark_that_commits_during_a_recount_stays(scoring: Scoring) -> None:
    """The count does not see the change, so the day is counted again."""
    await store_score(scoring, "s", 40)
    async with connected(scoring.url) as other:
        async with other.transaction():
            await other.execute("UPDATE session_scores SET total_score = 90")
            await other.execute(
                "INSERT INTO dirty_days SELECT (completed_at AT TIME ZONE 'UTC')::date FROM session_scores"
            )
            assert await recount_all(scoring.database) == 1
        assert await scoring.value("SELECT total FROM daily_counts WHERE is_all") == 40

    assert await recount_all(scoring.database) == 1
    assert await scoring.value("SELECT total FROM daily_counts WHERE is_all") == 90


async def test_scores_that_end_during_recounts_count_once(scoring: Scoring) -> None:
    of = Changes(scoring, random.Random(7))

    async def work() -> None:
        for _ in range(30):
            await of.score()
            await of.erase()

    async def count() -> None:
        for _ in range(6):
            await mark_all(scoring.database)
            await recount_all(scoring.database)

    await asyncio.gather(work(), count(), count())

    await assert_recounted(scoring)


async def test_a_second_process_leaves_the_counts_alone(scoring: Scoring) -> None:
    await store_score(scoring, "s", 40)
    async with connected(scoring.url) as connection, connection.transaction():
        await RECOUNT_LOCK.acquire(connection, "public")

        assert await recount_all(scoring.database) == 0


async def test_a_pass_that_fails_ends_no_worker(scoring: Scoring, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping, passes = asyncio.Event(), list[int]()

    async def fail(_database: object) -> int:
        passes.append(1)
        if len(passes) == 3:
            stopping.set()
        raise ZeroDivisionError

    monkeypatch.setattr(recount, "RECOUNT_EVERY_S", 0)
    monkeypatch.setattr(recount, "recount_all", fail)
    with capture_logs() as logged:
        await asyncio.wait_for(run_recounts(scoring.database, stopping), 30)

    assert {line["event"] for line in logged} == {"recount.failed"}


async def test_dirty_days_beyond_the_bound_are_being_recounted(scoring: Scoring) -> None:
    """Readers take them from the tables as they were."""
    for n in range(MOST_DIRTY + 2):
        await store_score(scoring, f"s{n}", 40, at=NOON + timedelta(days=n))

    assert await count_recounted(scoring.database, Selection()) == 2
    assert sum(p.count for p in (await analytics.trends(scoring.database, Selection()))[0]) == MOST_DIRTY
    await recount_all(scoring.database)
    assert await count_recounted(scoring.database, Selection()) == 0
    assert sum(p.count for p in (await analytics.trends(scoring.database, Selection()))[0]) == MOST_DIRTY + 2


# --- where a time range is read from -------------------------------------------------------------------

DAY = date(2026, 3, 10)
MIDNIGHT = datetime(2026, 3, 10, tzinfo=UTC)
HOUR, ONE = timedelta(hours=1), timedelta(days=1)
WHOLE = (MIDNIGHT, MIDNIGHT + ONE)


@pytest.mark.parametrize(
    ("since", "until", "days", "spans"),
    [
        pytest.param(None, None, (FIRST_DAY, NO_DAY), [WHOLE], id="all"),
        pytest.param(MIDNIGHT, MIDNIGHT + ONE, (DAY, DAY + ONE), [WHOLE], id="one-day"),
        pytest.param(MIDNIGHT + ONE, None, (DAY + ONE, NO_DAY), [], id="after-it"),
        pytest.param(
            MIDNIGHT - HOUR, None, (DAY, NO_DAY), [WHOLE, (MIDNIGHT - HOUR, MIDNIGHT)], id="part-of-the-first"
        ),
        pytest.param(None, MIDNIGHT + HOUR, (FIRST_DAY, DAY), [(MIDNIGHT, MIDNIGHT + HOUR)], id="part-of-the-last"),
        pytest.param(
            MIDNIGHT + HOUR,
            MIDNIGHT + 2 * HOUR,
            (NO_DAY, NO_DAY),
            [(MIDNIGHT + HOUR, MIDNIGHT + 2 * HOUR)],
            id="within-a-day",
        ),
    ],
)
def test_dirty_days_and_parts_of_days_are_counted_from_the_scores(
    since: datetime | None, until: datetime | None, days: tuple[date, date], spans: list[Any]
) -> None:
    found = split(since, until, [DAY])

    assert ((found.first_day, found.end_day), list(found.spans)) == (days, spans)
