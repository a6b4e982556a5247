"""When there is a look, and what of it is news."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from tables import table
from tarsy_scoring.drift.detection import (
    FEW,
    TENURE,
    ChainScore,
    Look,
    Tenure,
    current_tenure,
    due_look,
    is_news,
    size_of,
)
from tarsy_scoring.statistics.agreement import Estimate
from tarsy_scoring.statistics.drift import AnchorJudgement, Cause

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def scores(judges: str) -> list[ChainScore]:
    """One an hour, by the judges of these letters."""
    return [ChainScore(BEGIN + n * HOUR, judge, None, 60.0, BEGIN + n * HOUR, "h") for n, judge in enumerate(judges)]


def in_office(judges: str) -> tuple[str | None, str, int, int]:
    """The judge before, the judge of now, and how many scores each has."""
    tenure = current_tenure(scores(judges))
    assert tenure is not None
    return tenure.old, tenure.fingerprint, len(tenure.before), len(tenure.scores)


# --- who tenures ----------------------------------------------------------------------------------------


@table
def test_who_judges_now_and_who_did_before(runs: list[tuple[str, int]], expected: list[Any]) -> None:
    """Substitutes found no tenure, and a judge that returns after another judge's tenure is a new one."""
    assert list(in_office("".join(judges * times for judges, times in runs))) == expected


def test_a_few_scores_have_no_judge() -> None:
    assert current_tenure(scores("a" * (TENURE - 1))) is None
    assert current_tenure(scores("a" * TENURE)) is not None


def test_judges_by_lot_follow_nobody() -> None:
    """Where each score is of one of two judges, whatever the odds, there is no change to tell of."""
    dice = random.Random(11)
    for odds in (0.3, 0.5, 0.7):
        judges = "".join(dice.choices("ab", (odds, 1 - odds), k=3000))
        assert all(in_office(judges[:end])[0] is None for end in range(100, 3001, 100))


def test_every_mixture_has_an_answer() -> None:
    dice = random.Random(7)
    for _ in range(200):
        judges = "".join(letter * dice.randint(1, 40) for letter in dice.choices("abc", k=8))
        tenure = current_tenure(scores(judges))
        if tenure is None:
            assert len(judges) < TENURE
            continue
        assert tenure.fingerprint in judges[-TENURE:]
        assert tenure.old != tenure.fingerprint
        assert {s.judge_fingerprint for s in tenure.scores} == {tenure.fingerprint}
        assert {s.judge_fingerprint for s in tenure.before} <= {tenure.old}
        assert tenure.since == (None if tenure.old is None else tenure.scores[0].scored_at)
        assert_took_over_as_told(tenure, judges)


def assert_took_over_as_told(tenure: Tenure, judges: str) -> None:
    """By counting every window anew."""
    windows = [judges[n : n + TENURE] for n in range(len(judges) - TENURE)]
    rare = [n for n, window in enumerate(windows) if window.count(tenure.fingerprint) <= FEW]
    followed = [
        (n, last) for n in rare if (last := last_in_office(judges[: n + TENURE])) not in (None, tenure.fingerprint)
    ]
    if tenure.old is None:
        assert not followed or judges[-TENURE:].count(followed[-1][1] or "") > FEW
        return
    start, old = followed[-1]
    assert tenure.old == old
    assert judges[-TENURE:].count(tenure.old) <= FEW
    assert len(tenure.scores) == judges[start:].count(tenure.fingerprint)
    assert len(tenure.before) == judges[: start + TENURE].count(tenure.old)


def last_in_office(judges: str) -> str | None:
    """Who last gave a score as one of half or more of a long stretch."""
    for end in range(len(judges), 0, -1):
        if judges[max(0, end - 2 * TENURE) : end].count(judges[end - 1]) >= TENURE:
            return judges[end - 1]
    return None


def test_all_judges_in_sight_are_counted() -> None:
    found = [current_tenure(scores(judges)) for judges in ("a" * 60, "ab" * 60, "a" * 60 + "b" * 5 + "c" * 60)]

    assert [tenure and tenure.judges for tenure in found] == [1, 2, 3]


# --- when there is a look ------------------------------------------------------------------------------


def a_tenure(count: int) -> Tenure:
    return Tenure("b", BEGIN, scores("b" * count), "a", scores("a" * 300), 2)


def judged(count: int, judges: str = "ab") -> list[AnchorJudgement]:
    return [AnchorJudgement(f"s-{n}", judge, 60.0) for n in range(count) for judge in judges]


@table
def test_each_look_is_made_once_and_when_it_can_decide(
    count: int, anchors: int, outstanding: int, made: list[Look], days: int, look: Look | None
) -> None:
    assert due_look(a_tenure(count), judged(anchors), outstanding, made, BEGIN + days * DAY) == look


def test_one_judge_alone_is_only_watched() -> None:
    alone = Tenure("b", None, scores("b" * 500), None, (), 1)

    assert due_look(alone, judged(40), 0, [], BEGIN + 30 * DAY) is None


# --- what is news --------------------------------------------------------------------------------------


def estimate(value: float | None, low: float | None = None, high: float | None = None) -> Estimate:
    return Estimate(value, low, high, 40, 1.0, "a method")


@table
def test_a_published_change_is_no_news(
    cause: Cause | None, size: list[float] | None, published: tuple[Cause, list[float]] | None, news: bool
) -> None:
    earlier = published and (published[0], estimate(*published[1]))
    assert is_news(cause, estimate(*size) if size else None, earlier) is news


def test_the_size_is_that_of_the_part_that_is_named() -> None:
    sizes: dict[Cause | None, float | None] = {"judge": 1.0, "agents": 3.0, "both": 2.0, "none": None, None: None}

    for cause, size in sizes.items():
        found = size_of(cause, estimate(1), estimate(2), estimate(3))
        assert (found.value if found else None) == size
