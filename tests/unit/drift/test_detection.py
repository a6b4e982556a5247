"""When drift detection compares a chain's judges, and which of its findings are news."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from tables import table
from tarsy_scoring.statistics.agreement import Estimate
from tarsy_scoring.statistics.drift import AnchorJudgement, Cause
from tarsy_scoring.studies.detection import (
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

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def scores(judges: str) -> list[ChainScore]:
    """One score an hour, by the judges of these letters."""
    return [ChainScore(BEGIN + n * HOUR, judge, None, 60.0, BEGIN + n * HOUR, "h") for n, judge in enumerate(judges)]


def tenure_of(judges: str) -> tuple[str | None, str, int, int]:
    """The earlier judge, the current judge, and how many scores each has."""
    tenure = current_tenure(scores(judges))
    assert tenure is not None
    return tenure.old, tenure.fingerprint, len(tenure.before), len(tenure.scores)


# --- whose tenure it is --------------------------------------------------------------------------------


@table
def test_current_and_earlier_judge_of_a_chain(runs: list[tuple[str, int]], expected: list[Any]) -> None:
    """A substitute begins no tenure, and a judge that returns after another's tenure is a new one."""
    assert list(tenure_of("".join(judges * times for judges, times in runs))) == expected


def test_too_few_scores_make_no_tenure() -> None:
    assert current_tenure(scores("a" * (TENURE - 1))) is None
    assert current_tenure(scores("a" * TENURE)) is not None


def test_randomly_mixed_judges_have_no_earlier_judge() -> None:
    """Where each score is of one of two judges at random, no judge replaced the other."""
    dice = random.Random(11)
    for odds in (0.3, 0.5, 0.7):
        judges = "".join(dice.choices("ab", (odds, 1 - odds), k=3000))
        assert all(tenure_of(judges[:end])[0] is None for end in range(100, 3001, 100))


def test_tenure_agrees_with_a_count_of_every_window() -> None:
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
        assert_take_over_by_count(tenure, judges)


def assert_take_over_by_count(tenure: Tenure, judges: str) -> None:
    """Check the change of judges by counting every window anew."""
    windows = [judges[n : n + TENURE] for n in range(len(judges) - TENURE)]
    rare = [n for n, window in enumerate(windows) if window.count(tenure.fingerprint) <= FEW]
    followed = [
        (n, last) for n in rare if (last := last_frequent_judge(judges[: n + TENURE])) not in (None, tenure.fingerprint)
    ]
    if tenure.old is None:
        assert not followed or judges[-TENURE:].count(followed[-1][1] or "") > FEW
        return
    start, old = followed[-1]
    assert tenure.old == old
    assert judges[-TENURE:].count(tenure.old) <= FEW
    assert len(tenure.scores) == judges[start:].count(tenure.fingerprint)
    assert len(tenure.before) == judges[: start + TENURE].count(tenure.old)


def last_frequent_judge(judges: str) -> str | None:
    """The judge of the last score that is one of half or more of a long stretch."""
    for end in range(len(judges), 0, -1):
        if judges[max(0, end - 2 * TENURE) : end].count(judges[end - 1]) >= TENURE:
            return judges[end - 1]
    return None


def test_all_judges_of_the_scores_are_counted() -> None:
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


def test_chain_with_one_judge_has_no_look() -> None:
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


def test_size_of_a_change_is_that_of_its_cause() -> None:
    sizes: dict[Cause | None, float | None] = {"judge": 1.0, "agents": 3.0, "both": 2.0, "none": None, None: None}

    for cause, size in sizes.items():
        found = size_of(cause, estimate(1), estimate(2), estimate(3))
        assert (found.value if found else None) == size
