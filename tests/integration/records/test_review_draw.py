"""The draw of the review queue ranks in SQL what `pick_for_review` ranks in memory."""

import asyncio
import random
from collections import Counter, defaultdict
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from builders import Scoring
from stored import NOON, store_score
from tarsy_scoring.labels import review
from tarsy_scoring.postgres.migrate import migrate
from tarsy_scoring.scores.bands import DEFAULT_BANDS, bands_of
from tarsy_scoring.statistics.sampling import pick_for_review

DAY, MIDNIGHT = NOON.date(), NOON.replace(hour=0)
RANGES = {"correct": (60, 100), "wrong": (0, 34), "partial": (35, 59)}


async def store_day(scoring: Scoring, scores: dict[str, int], draw: random.Random | None = None) -> None:
    """Store scores of these judges, with random properties where there is a draw; judge-2 has bands of its own."""
    await scoring.store.keep_criteria("hash-bands", "c", {"bands": RANGES})
    choose = draw.choice if draw else lambda values: values[0]
    for judge, number in scores.items():
        for n in range(number):
            gates = choose((0, 2))
            await store_score(
                scoring,
                f"{judge}-{n}",
                draw.randrange(101) if draw else 65,
                judge_fingerprint=judge,
                criteria_hash="hash-bands" if judge == "judge-2" else None,
                flags=choose(
                    (
                        [],
                        ["ungrounded"],
                        ["second_opinion_disagrees"],
                        ["outcome_score_mismatch"],
                        ["outcome_score_mismatch", "second_opinion_disagrees", "ungrounded"],
                    )
                ),
                spread=choose((None, 3, 12, 20)),
                judge_outcome=choose((None, "correct", "wrong", "no-such-band")),
                outcome=choose(("pass", "fail", None)),
                gates_passed=gates,
                gates_total=gates,
            )


async def picks(scoring: Scoring) -> dict[str, tuple[Any, ...]]:
    rows = await scoring.rows("SELECT * FROM review_picks")
    return {
        str(r["score_id"]): (r["place"], r["is_random"], r["inclusion_probability"], tuple(r["reasons"])) for r in rows
    }


@pytest.mark.parametrize("seed", range(4))
async def test_sql_picks_what_memory_picks(scoring: Scoring, seed: int) -> None:
    await store_day(scoring, {"judge-1": 40, "judge-2": 40, "judge-3": 4}, random.Random(seed))

    assert await review.draw(scoring.database, DAY)

    by_judge = defaultdict[tuple[str, str], list[dict[str, Any]]](list)
    for row in await scoring.rows("SELECT * FROM session_scores"):
        by_judge[row["criteria_hash"] or "", row["judge_fingerprint"]].append(row)
    expected = {}
    for judge, rows in by_judge.items():
        bands = bands_of(RANGES) if judge[0] else DEFAULT_BANDS
        candidates = [review.candidate(row, bands) for row in rows]
        found = pick_for_review(candidates, review.PICKS_A_DAY, bands, seed=review._seed(MIDNIGHT, judge))
        for place, pick in enumerate(found):
            expected[pick.score_id] = (place, pick.is_random, pick.inclusion_probability, pick.reasons)
    assert await picks(scoring) == expected


async def test_a_pick_holds_the_judgement_of_its_score(scoring: Scoring) -> None:
    """Also a pick that was stored before the migration."""
    judgement = "criteria, criteria_hash, judge_fingerprint, total_score, judge_outcome"
    await store_day(scoring, {"judge-1": 3, "judge-2": 3}, random.Random(1))
    await review.draw(scoring.database, DAY)
    expected = await scoring.rows(f"SELECT score_id, {judgement} FROM session_scores ORDER BY 1")
    held = f"SELECT score_id, {judgement} FROM review_picks ORDER BY 1"
    assert await scoring.rows(held) == expected

    await asyncio.to_thread(migrate, scoring.url, down="0022")
    await asyncio.to_thread(migrate, scoring.url)

    assert await scoring.rows(held) == expected


async def test_each_judge_has_its_own_share(scoring: Scoring, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores of other judges do not matter; of few scores, all are picked with certainty."""
    monkeypatch.setattr(review, "MOST_CANDIDATES", 200)
    await store_day(scoring, {"busy": 130, "idle": 3})

    await review.draw(scoring.database, DAY)

    sessions = {str(r["score_id"]): r["session_id"] for r in await scoring.rows("SELECT * FROM session_scores")}
    found = [(sessions[score].partition("-")[0], *pick) for score, pick in (await picks(scoring)).items()]
    assert Counter(judge for judge, *_ in found) == {"busy": review.PICKS_A_DAY, "idle": 3}
    assert {probability for judge, _, _, probability, _ in found if judge == "idle"} == {1.0}
    # Of the 130, a sample of 100 is ranked.
    assert min(f[3] for f in found) == pytest.approx(100 / 130 * review.PICKS_A_DAY / 2 / 100)
    assert sorted(place for judge, place, *_ in found if judge == "idle") == [0, 1, 2]


async def test_a_day_without_scores_is_drawn_once(scoring: Scoring) -> None:
    day = date(2026, 1, 1)

    assert [await review.draw(scoring.database, day) for _ in range(2)] == [True, False]
    assert not await picks(scoring)


async def test_draws_of_one_day_share_its_scores(scoring: Scoring) -> None:
    """Each score is a candidate once; picks of a later draw come behind those of an earlier one."""
    hours = [MIDNIGHT + timedelta(hours=n) for n in range(24)]
    for n, hour in enumerate(hours):
        await store_score(scoring, f"s-{n}", 65, at=hour)
    draw = partial(review.draw, scoring.database, DAY)

    assert await draw(until=hours[3])
    assert not await draw(until=hours[5]), "another reader drew meanwhile"
    assert await draw(since=hours[3], until=hours[5])
    assert await draw(since=hours[5])
    assert not await draw(since=hours[5])

    drawn = await scoring.rows(
        "SELECT session_id, inclusion_probability FROM review_picks JOIN session_scores USING (score_id) ORDER BY place"
    )
    order = [int(row["session_id"].partition("-")[2]) for row in drawn]
    assert (set(order[:3]), set(order[3:5]), len(order)) == ({0, 1, 2}, {3, 4}, 5 + review.PICKS_A_DAY)
    assert {row["inclusion_probability"] for row in drawn[:5]} == {1.0}
    assert min(order[5:]) >= 5


async def test_another_day_has_other_picks(scoring: Scoring) -> None:
    await store_day(scoring, {"judge-1": 60})
    await review.draw(scoring.database, DAY)
    first = await picks(scoring)
    await scoring.rows("DELETE FROM review_days")
    await scoring.rows("UPDATE session_scores SET completed_at = $1", datetime(2026, 3, 11, 12, tzinfo=UTC))

    await review.draw(scoring.database, date(2026, 3, 11))

    assert (await picks(scoring)).keys() != first.keys()
