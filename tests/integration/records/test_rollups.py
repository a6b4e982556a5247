"""Rollups equal a recount of the scores after every change of a score, and while they are filled or rebuilt."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, get_args

import pytest
from structlog.testing import capture_logs

import counted_again
from builders import DEFAULT_CRITERIA, OTHER_CRITERIA, Scoring, completion, connected, failure, rescore
from stored import NOON, store_score
from tarsy_scoring.analytics import analytics, rollup_keeping
from tarsy_scoring.analytics.analytics import KINDS, DayOf, Selection, TrendPoint
from tarsy_scoring.analytics.chain_averages import EveryChain, every_chain
from tarsy_scoring.analytics.rollup_keeping import KEEPER_LOCK, RollupKeeper
from tarsy_scoring.analytics.rollups import FIGURES, FIRST_DAY, NO_DAY, count_waiting, cover
from tarsy_scoring.judge.verdict import MissingTool
from tarsy_scoring.missing_tools import demand
from tarsy_scoring.postgres.migrate import migrate
from tarsy_scoring.retention.erasure import erase
from tarsy_scoring.retention.pruning import Keep, Pruner
from tarsy_scoring.scores.bands import DEFAULT_BANDS

GROUP = "chain_id, criteria, judge_fingerprint, tools_hash, has_reference, is_doubtful, categories"
FIGURES_GROUP = "by_end, day, chain_id, criteria, judge_fingerprint, has_reference, is_doubtful"
# The rollups with the names of their groups and sets instead of ids.
CONTENT = (
    f"""SELECT g.is_all, {GROUP}, day, total, made, latest, ended, CASE WHEN latest <> 0 THEN category_sums END AS sums
        FROM score_rollups r JOIN score_groups g ON g.group_id = r.group_id AND g.is_all = r.is_all""",
    f"SELECT {GROUP}, day, scores FROM chain_rollups JOIN score_groups USING (group_id)",
    f"SELECT {GROUP}, day, tag, scores FROM tag_rollups JOIN score_groups USING (group_id)",
    f"""SELECT {GROUP}, day, names, scores, points_lost
        FROM missed_rollups JOIN score_groups USING (group_id) JOIN missed_sets USING (set_id)""",
    "SELECT * FROM missed_months",
    f"SELECT {FIGURES_GROUP}, {', '.join(f'trim_scale({name}::numeric)' for name in FIGURES)} FROM chain_figures",
)
MONTHS_OF_DAYS = """SELECT group_id, set_id, date_trunc('month', day::timestamp)::date AS month,
  sum(scores)::int AS scores, sum(points_lost)::bigint AS points_lost FROM missed_rollups GROUP BY 1, 2, 3"""


@pytest.fixture
async def keeper(scoring: Scoring) -> RollupKeeper:
    return RollupKeeper(scoring.database)


async def content(scoring: Scoring) -> list[list[str]]:
    """What the rollups hold, in an order of its own."""
    return [[row["t"] for row in await scoring.rows(f"SELECT t::text FROM ({sql}) t ORDER BY 1")] for sql in CONTENT]


async def assert_recounted(scoring: Scoring, keeper: RollupKeeper) -> None:
    """The folded rollups are those of a recount, which leaves nothing that counts nothing."""
    await keeper.run_once()
    assert not await scoring.value("SELECT count(*) FROM score_deltas")
    found = await content(scoring)
    assert found[-2] == [row["t"] for row in await scoring.rows(f"SELECT t::text FROM ({MONTHS_OF_DAYS}) t ORDER BY 1")]

    await keeper.rebuild()

    assert found == await content(scoring)


# --- the law -------------------------------------------------------------------------------------------

CATEGORIES: tuple[Any, ...] = ({"a": 10, "b": 7.5}, {"a": 3}, {"b": "no number", "c": 0.1}, None)
FLAGS = ([], ["ungrounded"], ["outcome_score_mismatch"], ["tampering_suspected"])
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

    def __init__(self, scoring: Scoring, keeper: RollupKeeper, draw: random.Random) -> None:
        self.scoring, self.keeper, self.draw = scoring, keeper, draw
        self.all: list[Callable[[], Awaitable[Any]]] = [
            *[self.score] * 12,
            *[self.move] * 3,
            self.score_together,
            self.fail,
            self.ended_earlier,
            self.relabel,
            self.erase,
            self.prune,
            self.delete_scores,
            self.store_tools_late,
            self.turn_kind,
            self.keeper.run_once,
            self.keeper.fold,
            self.keeper.rebuild,
            self.forget_filled,
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
            tools_hash=choose((None, "tools-1")),
            reference=choose(REFERENCES),
            outcome=choose(("pass", "fail", None)),
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
        """Let all scores of a session end some days or weeks earlier, so that several change in one statement."""
        earlier = "UPDATE session_scores SET completed_at = completed_at - $2::interval WHERE session_id = $1"
        await self.scoring.rows(earlier, self.session, timedelta(days=self.draw.choice((-1, 0, 1, 2, 3, 40))))

    async def ended_earlier(self) -> None:
        at = datetime.now(UTC) - timedelta(days=self.draw.randrange(5))
        await self.scoring.rows("UPDATE sessions SET completed_at = $2 WHERE session_id = $1", self.session, at)

    async def relabel(self) -> None:
        """Complete, or take back, several scores of several sessions in one statement."""
        status = self.draw.choice(("completed", "cancelled"))
        await self.scoring.rows(
            "UPDATE session_scores SET status = $1, total_score = NULL "
            "WHERE status IN ('completed', 'cancelled', 'failed') AND abs(hashtext(score_id::text)) % 7 = 0",
            status,
        )

    async def erase(self) -> None:
        await erase(self.scoring.database, self.scoring.leases, self.session, by="ada", relay_wait_s=0)

    async def prune(self) -> None:
        await self.scoring.rows("UPDATE scoring_events SET published_at = now()")
        await self.scoring.rows("UPDATE session_scores SET created_at = completed_at WHERE completed_at IS NOT NULL")
        await Pruner(self.scoring.database, Keep(scores_days=3), share=1).run()

    async def delete_scores(self) -> None:
        await self.scoring.rows("DELETE FROM session_scores WHERE abs(hashtext(score_id::text)) % 11 = 0")

    async def turn_kind(self) -> None:
        """Give several scores a reference, or take it away, in one statement."""
        await self.scoring.rows(
            "UPDATE session_scores SET reference = CASE WHEN reference IS NULL THEN '{}'::jsonb END "
            "WHERE status = 'completed' AND abs(hashtext(score_id::text)) % 5 = 0"
        )

    async def store_tools_late(self) -> None:
        await self.scoring.rows(
            "INSERT INTO score_missing_tools SELECT score_id, 9, 'late', '' FROM session_scores "
            "WHERE abs(hashtext(score_id::text)) % 5 = 0 ON CONFLICT DO NOTHING"
        )

    async def forget_filled(self) -> None:
        """Begin as after the migration of a database in use."""
        await self.scoring.rows("UPDATE rollups_filled SET since = 'infinity', figures_since = 'infinity'")


@pytest.mark.parametrize("seed", range(12))
async def test_rollups_equal_a_recount_after_any_changes(scoring: Scoring, keeper: RollupKeeper, seed: int) -> None:
    draw = random.Random(seed)
    changes = Changes(scoring, keeper, draw)
    for _ in range(40):
        await draw.choice(changes.all)()

    await assert_recounted(scoring, keeper)


async def assert_counted(scoring: Scoring, of: Selection) -> None:
    """The figures of a selection are those of the scores."""
    names = TrendPoint.__slots__
    for day_of in get_args(DayOf):
        found = await analytics.trends(scoring.database, of, day_of)
        points = await counted_again.trends(scoring, of, day_of)
        assert [asdict(p) for p in found.points] == [{n: p[n] for n in names} for p in points if p["count"]], day_of
        assert found.left_out == sum(p["doubtful"] for p in points)
        assert_same_chains(
            await every_chain(scoring.database, of, day_of), await counted_again.figures(scoring, of, day_of)
        )
    blind = replace(of, reference="without")  # figures that have no filter by kind
    made = [{n: p[n] for n in names} for p in await counted_again.totals_made(scoring, blind) if p["count"]]
    assert [asdict(p) for p in await analytics.totals_made(scoring.database, of)] == made

    shown = await analytics.distribution(scoring.database, of, DEFAULT_BANDS)
    counts, averages = await counted_again.distribution(scoring, of, DEFAULT_BANDS)
    by_band = {(row["band"], row["has_total"]): row["count"] for row in counts}
    assert [b.count for b in shown.bands] == [by_band.get((b.id, True), 0) for b in DEFAULT_BANDS]
    assert shown.without_total == by_band.get((None, False), 0)
    listed = {(b.band, c.criteria, c.category): (c.average, c.count) for b in shown.bands for c in b.categories}
    listed |= {(None, c.criteria, c.category): (c.average, c.count) for c in shown.categories}
    expected = {(r["band"], r["criteria"], r["category"]): (r["average"], r["count"]) for r in averages}
    assert listed == {key: (pytest.approx(average), count) for key, (average, count) in expected.items()}

    chains, tagged = await counted_again.failure_tags(scoring, of)
    tags = await analytics.failure_tags(scoring.database, of)
    assert tags == analytics.tag_shares({row["chain_id"]: row["scores"] for row in chains}, tagged)

    found = await demand.read_demand(scoring.database, blind)
    for names in (["get_logs"], ["Get Logs", "get_logs"], ["trace", "late"]):
        missed = Counter[str | None]()
        for one in found.of_names(name for name in names if name in found.by_name):
            missed[one.chain_id] += one.sessions
        expected = await counted_again.missed(scoring, blind, names)
        assert missed == {row["chain_id"]: row["sessions"] for row in expected}, names


def assert_same_chains(found: EveryChain, expected: list[dict[str, Any]]) -> None:
    """The figures of each chain, and a trend that adds up to its totals."""
    assert {chain.chain_id for chain in found.chains} == {row["chain_id"] for row in expected}
    by_chain = {chain.chain_id: chain for chain in found.chains}
    for row in expected:
        chain = by_chain[row["chain_id"]]
        for name in ("scores", "count", "outcomes", "passed", "judges"):
            assert getattr(chain, name) == row[name], name
        assert chain.criteria == row["criteria"]
        assert chain.average == pytest.approx(row["average"])
        for name in ("judging_usd", "input_tokens", "output_tokens", "agent_usd", "duration_s"):
            assert getattr(chain, name).sum == pytest.approx(row[name]), name
        assert (chain.judging_usd.count, chain.input_tokens.count) == (row["judging_costs"], row["token_counts"])
        assert sum(step.count for step in chain.trend) == chain.count
        points = sum(step.average * step.count for step in chain.trend)
        assert points == pytest.approx((chain.average or 0) * chain.count)


@pytest.mark.parametrize("seed", range(8))
async def test_figures_equal_those_of_the_scores(scoring: Scoring, keeper: RollupKeeper, seed: int) -> None:
    """With deltas that are not folded, days that are not filled, and ranges that begin within a day."""
    draw = random.Random(seed)
    changes = Changes(scoring, keeper, draw)
    now = datetime.now(UTC)
    for _ in range(8):
        for _ in range(6):
            await draw.choice(changes.all)()
        filled = draw.choice((NO_DAY, now.date() - timedelta(days=1), FIRST_DAY))
        await keeper.run_once()
        await scoring.rows(
            "UPDATE rollups_filled SET since = $1, figures_since = $2", filled, draw.choice((filled, NO_DAY))
        )
        await changes.score()

        midnight = datetime.combine(now.date(), time(), UTC)
        for days in (None, timedelta(days=1, hours=3), timedelta(days=1), timedelta(days=55)):
            since = days and (now if days.seconds else midnight) - days
            chain, criteria = draw.choice((None, "k")), draw.choice((None, DEFAULT_CRITERIA))
            until = draw.choice((None, midnight, now - timedelta(hours=1)))
            for kind in KINDS:
                await assert_counted(scoring, Selection(chain, criteria, since, until, kind))
        await scoring.rows("UPDATE rollups_filled SET since = '-infinity', figures_since = '-infinity'")


async def test_an_empty_database_has_empty_rollups(scoring: Scoring, keeper: RollupKeeper) -> None:
    """After all sessions are erased, folding leaves no row that counts nothing."""
    changes = Changes(scoring, keeper, random.Random(0))
    for _ in range(10):
        await changes.score()
    await keeper.run_once()
    await scoring.rows("DELETE FROM sessions")

    await keeper.run_once()

    assert await content(scoring) == [[]] * len(CONTENT)


async def test_changes_of_open_scores_append_nothing(scoring: Scoring) -> None:
    claimed = await scoring.claimed()
    await scoring.store.end(failure(claimed))

    assert not await scoring.value("SELECT count(*) FROM score_deltas")


async def test_a_second_process_leaves_the_rollups_alone(scoring: Scoring, keeper: RollupKeeper) -> None:
    async with connected(scoring.url) as connection, connection.transaction():
        await KEEPER_LOCK.acquire(connection, "public")

        assert not await keeper.run_once()


async def test_a_pass_that_fails_ends_no_worker(keeper: RollupKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers stay exact without folding, so scoring goes on, and the next pass tries again."""
    stopping, passes = asyncio.Event(), list[int]()

    async def fail() -> bool:
        passes.append(1)
        if len(passes) == 3:
            stopping.set()
        raise ZeroDivisionError

    monkeypatch.setattr(rollup_keeping, "FOLD_EVERY_S", 0)
    monkeypatch.setattr(keeper, "run_once", fail)
    with capture_logs() as logged:
        await asyncio.wait_for(keeper.run(stopping), 30)

    assert {line["event"] for line in logged} == {"rollups.failed"}


async def test_deltas_wait_until_they_are_folded(scoring: Scoring, keeper: RollupKeeper) -> None:
    await store_score(scoring, "s0", 50, missing_tools=("get_logs",))
    assert await count_waiting(scoring.database) > 0

    await keeper.run_once()

    assert await count_waiting(scoring.database) == 0


# --- upgrade -------------------------------------------------------------------------------------------


@pytest.fixture
async def stored(scoring: Scoring) -> Scoring:
    """Scores of three days, of which one was scored again."""
    for n in range(6):
        await store_score(scoring, f"s{n}", 10 * n, at=NOON + timedelta(days=n // 2), missing_tools=("get_logs",))
    await store_score(scoring, "s0", 90, at=NOON + timedelta(days=9), failure_tags=["slow"])
    return scoring


async def test_an_upgrade_fills_the_rollups_of_stored_scores(stored: Scoring, keeper: RollupKeeper) -> None:
    """A score of the version before, which ends after the migration, counts once."""
    await keeper.run_once()
    before = await content(stored)
    await asyncio.to_thread(migrate, stored.url, down="0019")
    await asyncio.to_thread(migrate, stored.url)
    assert await content(stored) == [[]] * len(CONTENT)
    await store_score(stored, "late", 55, at=NOON + timedelta(days=3))
    await stored.rows("DELETE FROM sessions WHERE session_id = 'late'")

    await keeper.run_once()

    assert await content(stored) == before
    assert await stored.value("SELECT since = '-infinity' FROM rollups_filled")


async def test_an_upgrade_adds_up_the_months_of_stored_days(stored: Scoring, keeper: RollupKeeper) -> None:
    await keeper.run_once()
    before = await content(stored)
    assert before[-2]

    await asyncio.to_thread(migrate, stored.url, down="0021")
    await asyncio.to_thread(migrate, stored.url)

    assert (await content(stored))[:-1] == before[:-1]
    await keeper.run_once()  # counts the days again for the figures
    assert await content(stored) == before


async def test_scores_that_end_during_a_rebuild_count_once(scoring: Scoring, keeper: RollupKeeper) -> None:
    of = Changes(scoring, keeper, random.Random(7))

    async def work() -> None:
        for _ in range(30):
            await of.score()

    async def rebuild() -> None:
        for _ in range(6):
            await keeper.rebuild()

    await asyncio.gather(work(), rebuild())

    await assert_recounted(scoring, keeper)


# --- which days rollups cover --------------------------------------------------------------------------

DAY = date(2026, 3, 10)
MIDNIGHT = datetime(2026, 3, 10, tzinfo=UTC)
HOUR, ONE = timedelta(hours=1), timedelta(days=1)


@pytest.mark.parametrize(
    ("since", "until", "filled", "expected"),
    [
        pytest.param(None, None, FIRST_DAY, (FIRST_DAY, NO_DAY, True), id="all"),
        pytest.param(MIDNIGHT, MIDNIGHT + ONE, FIRST_DAY, (DAY, DAY + ONE, True), id="one-day"),
        pytest.param(MIDNIGHT - HOUR, None, FIRST_DAY, (DAY, NO_DAY, False), id="part-of-the-first-day"),
        pytest.param(None, MIDNIGHT + HOUR, FIRST_DAY, (FIRST_DAY, DAY, False), id="part-of-the-last-day"),
        pytest.param(MIDNIGHT + HOUR, MIDNIGHT + 2 * HOUR, FIRST_DAY, (NO_DAY, NO_DAY, False), id="within-a-day"),
        pytest.param(None, None, NO_DAY, (NO_DAY, NO_DAY, False), id="not-filled"),
        pytest.param(None, None, DAY, (DAY, NO_DAY, False), id="filled-in-part"),
        pytest.param(MIDNIGHT, None, DAY, (DAY, NO_DAY, True), id="filled-where-it-counts"),
    ],
)
def test_rollups_cover_whole_filled_days(
    since: datetime | None, until: datetime | None, filled: date, expected: tuple[Any, ...]
) -> None:
    found = cover(since, until, filled)

    assert (found.first_day, found.end_day, found.is_all) == expected


async def test_figures_are_exact_whichever_version_folds(scoring: Scoring, keeper: RollupKeeper) -> None:
    """A statement that does not know them deletes the deltas, as an older version does: a trigger adds them up."""
    changes = Changes(scoring, keeper, random.Random(7))
    for _ in range(10):
        await changes.score()
        await changes.move()

    await scoring.rows("DELETE FROM score_deltas")

    figures = (await content(scoring))[-1]
    await keeper.rebuild()
    assert figures == (await content(scoring))[-1] != []
