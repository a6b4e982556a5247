"""When there is a look, and what of it is news."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from tarsy_scoring.statistics.agreement import Estimate
from tarsy_scoring.statistics.drift import AnchorJudgement, Cause
from tarsy_scoring.statistics.judge_change import (
    DAYS_TO_LOOK,
    FEW,
    REIGN,
    SESSIONS_AFTER_DAYS,
    SESSIONS_TO_LOOK,
    ChainScore,
    Look,
    Reign,
    current_reign,
    due_look,
    is_news,
    judged_by_both,
    size_of,
)

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def scores(judges: str) -> list[ChainScore]:
    """One an hour, by the judges of these letters."""
    return [ChainScore(BEGIN + n * HOUR, BEGIN + n * HOUR, None, judge, "h", 60.0) for n, judge in enumerate(judges)]


def reigning(judges: str) -> tuple[str | None, str, int, int]:
    """The judge before, the judge of now, and how many scores each has."""
    reign = current_reign(scores(judges))
    assert reign is not None
    return reign.old, reign.fingerprint, len(reign.before), len(reign.scores)


# --- who reigns ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("judges", "told"),
    [
        pytest.param("a" * 100, (None, "a", 0, 100), id="one-judge"),
        pytest.param("a" * 100 + "b" * 50, ("a", "b", 100, 50), id="another-took-over"),
        pytest.param("a" * 100 + "b" * 27, ("a", "b", 100, 27), id="just-took-over"),
        pytest.param("a" * 100 + "b" * 26, (None, "b", 0, 26), id="not-quite"),
        pytest.param("a" * 100 + "b" * 14, (None, "a", 0, 100), id="not-yet-most"),
        pytest.param("ab" * 200, (None, "a", 0, 200), id="taking-turns"),
        pytest.param("aaab" * 30 + "b" * 60, (None, "b", 0, 90), id="a-stand-in-in-an-outage"),
        pytest.param(("a" * 9 + "b") * 12 + "b" * 60, ("a", "b", 108, 63), id="few-of-it-before"),
        pytest.param(("a" * 13 + "bb") * 8 + "b" * 60, (None, "b", 0, 76), id="more-than-few-before"),
        pytest.param("aaab" * 30 + "cccb" * 30, ("a", "c", 90, 90), id="a-stand-in-throughout"),
        pytest.param("a" * 60 + "b" * 5 + "a" * 60, (None, "a", 0, 120), id="a-stand-in"),
        pytest.param("a" * 60 + "b" * 60 + "a" * 60, ("b", "a", 60, 60), id="back-again"),
        pytest.param("a" * 60 + "b" * 60 + "c" * 60, ("b", "c", 60, 60), id="three-judges"),
        pytest.param("ab" * 10 + "a" * 60 + "cb" * 5 + "c" * 60, ("a", "c", 70, 65), id="stand-ins-of-both"),
        pytest.param("a" * 300 + "b" * 14 + "c" * 320, ("a", "c", 300, 320), id="a-short-stand-in-between"),
        pytest.param("a" * 300 + "b" * 16 + "c" * 320, ("a", "c", 300, 320), id="a-stand-in-between"),
        pytest.param("a" * 300 + "b" * 26 + "c" * 320, ("a", "c", 300, 320), id="a-long-stand-in-between"),
        pytest.param("a" * 300 + "b" * 29 + "c" * 320, ("a", "c", 300, 320), id="not-quite-a-reign-between"),
        pytest.param("a" * 300 + "b" * 30 + "c" * 320, ("b", "c", 30, 320), id="a-reign-between"),
        pytest.param("a" * 60 + "bc" * 20 + "d" * 60, ("a", "d", 60, 60), id="two-stand-ins-between"),
        pytest.param("a" * 60 + "b" * 28 + "a" * 60, (None, "a", 0, 120), id="back-from-behind-a-stand-in"),
        pytest.param("d" * 60 + "a" * 60 + "b" * 28 + "a" * 60, ("d", "a", 60, 120), id="an-older-change"),
        pytest.param("b" * 20 + "c" * 60, (None, "c", 0, 60), id="nobody-reigned-before"),
        pytest.param("abc" * 100, (None, "a", 0, 100), id="three-in-rotation"),
    ],
)
def test_who_judges_now_and_who_did_before(judges: str, told: tuple[str | None, str, int, int]) -> None:
    """By most of the scores in a row, so that stand-ins make no judge, and a judge who comes back is a new one."""
    assert reigning(judges) == told


def test_it_takes_over_with_its_first_score() -> None:
    """Not where it has most of them."""
    reign = current_reign(scores("a" * 100 + "b" * 50))

    assert reign is not None
    assert reign.since == BEGIN + 100 * HOUR


def test_a_few_scores_have_no_judge() -> None:
    """One less than it takes."""
    assert current_reign(scores("a" * (REIGN - 1))) is None
    assert current_reign(scores("a" * REIGN)) is not None


def test_judges_by_lot_follow_nobody() -> None:
    """Where each score is of one of two judges, whatever the odds, there is no change to tell of."""
    dice = random.Random(11)
    for odds in (0.3, 0.5, 0.7):
        judges = "".join(dice.choices("ab", (odds, 1 - odds), k=3000))
        assert all(reigning(judges[:end])[0] is None for end in range(100, 3001, 100))


def test_every_mixture_has_an_answer() -> None:
    """The judge of now is among the newest, the one before is another, and nobody's scores are mixed."""
    dice = random.Random(7)
    for _ in range(200):
        judges = "".join(letter * dice.randint(1, 40) for letter in dice.choices("abc", k=8))
        reign = current_reign(scores(judges))
        if reign is None:
            assert len(judges) < REIGN
            continue
        assert reign.fingerprint in judges[-REIGN:]
        assert reign.old != reign.fingerprint
        assert {s.judge_fingerprint for s in reign.scores} == {reign.fingerprint}
        assert {s.judge_fingerprint for s in reign.before} <= {reign.old}
        assert (reign.since is None) == (reign.old is None)
        assert_took_over_as_told(reign, judges)


def assert_took_over_as_told(reign: Reign, judges: str) -> None:
    """By counting every window anew."""
    windows = [judges[n : n + REIGN] for n in range(len(judges) - REIGN)]
    rare = [n for n, window in enumerate(windows) if window.count(reign.fingerprint) <= FEW]
    followed = [(n, last) for n in rare if (last := reigned_last(judges[: n + REIGN])) not in (None, reign.fingerprint)]
    if reign.old is None:
        assert not followed or judges[-REIGN:].count(followed[-1][1] or "") > FEW
        return
    start, old = followed[-1]
    assert reign.old == old
    assert judges[-REIGN:].count(reign.old) <= FEW
    assert len(reign.scores) == judges[start:].count(reign.fingerprint)
    assert len(reign.before) == judges[: start + REIGN].count(reign.old)


def reigned_last(judges: str) -> str | None:
    """Who last gave a score as one of half or more of a long stretch."""
    for end in range(len(judges), 0, -1):
        if judges[max(0, end - 2 * REIGN) : end].count(judges[end - 1]) >= REIGN:
            return judges[end - 1]
    return None


def test_all_judges_in_sight_are_counted() -> None:
    """Those who stood in, too."""
    assert [
        r.judges for j in ("a" * 60, "ab" * 60, "a" * 60 + "b" * 5 + "c" * 60) if (r := current_reign(scores(j)))
    ] == [
        1,
        2,
        3,
    ]


# --- when there is a look ------------------------------------------------------------------------------


def a_reign(count: int) -> Reign:
    return Reign("b", BEGIN, scores("b" * count), "a", scores("a" * 300), 2)


def judged(count: int, judges: str = "ab") -> list[AnchorJudgement]:
    return [AnchorJudgement(f"s-{n}", judge, 60.0) for n in range(count) for judge in judges]


@pytest.mark.parametrize(
    ("count", "anchors", "outstanding", "looked", "days", "look"),
    [
        pytest.param(20, 40, 0, [], 1, "anchors", id="anchors-are-judged"),
        pytest.param(20, 40, 1, [], 1, None, id="one-anchor-is-under-way"),
        pytest.param(20, 4, 0, [], 1, None, id="too-few-anchors"),
        pytest.param(20, 5, 0, [], 1, "anchors", id="just-enough-anchors"),
        pytest.param(20, 40, 0, ["anchors"], 1, None, id="anchors-were-looked-at"),
        pytest.param(SESSIONS_TO_LOOK, 40, 0, ["anchors"], 1, "sessions", id="enough-sessions"),
        pytest.param(SESSIONS_TO_LOOK, 40, 0, [], 1, "sessions", id="enough-sessions-at-once"),
        pytest.param(SESSIONS_TO_LOOK - 1, 40, 0, ["anchors"], 1, None, id="one-session-less"),
        pytest.param(SESSIONS_TO_LOOK, 40, 0, ["sessions"], 1, None, id="sessions-were-looked-at"),
        pytest.param(20, 40, 0, ["sessions"], 30, None, id="nothing-comes-after-sessions"),
        pytest.param(SESSIONS_TO_LOOK, 40, 3, [], 1, None, id="sessions-wait-for-anchors"),
        pytest.param(SESSIONS_TO_LOOK, 40, 3, [], DAYS_TO_LOOK, "sessions", id="nobody-waits-for-ever"),
        pytest.param(SESSIONS_AFTER_DAYS, 40, 0, ["anchors"], DAYS_TO_LOOK, "sessions", id="fewer-after-days"),
        pytest.param(SESSIONS_AFTER_DAYS - 1, 40, 0, ["anchors"], DAYS_TO_LOOK, None, id="too-few-after-days"),
        pytest.param(SESSIONS_TO_LOOK, 0, 0, [], 1, "sessions", id="no-anchors-at-all"),
    ],
)
def test_each_look_is_made_once_and_when_it_can_tell(
    count: int, anchors: int, outstanding: int, looked: Sequence[Look], days: int, look: Look | None
) -> None:
    """The number of looks is what keeps false alarms few."""
    assert due_look(a_reign(count), judged(anchors), outstanding, looked, BEGIN + days * DAY) == look


def test_one_judge_alone_is_only_watched() -> None:
    """There is nobody to compare it with."""
    alone = Reign("b", None, scores("b" * 500), None, (), 1)

    assert due_look(alone, judged(40), 0, [], BEGIN + 30 * DAY) is None


def test_anchors_count_that_both_judged() -> None:
    """Several judgements of one anchor are one anchor."""
    said = judged(3) + judged(5, "a") + judged(2, "bb") + judged(9, "c")

    assert judged_by_both(said, "a", "b") == 3


# --- what is news --------------------------------------------------------------------------------------


def estimate(value: float | None, low: float | None = None, high: float | None = None) -> Estimate:
    return Estimate(value, low, high, 40, 1.0, "a method")


EIGHT = estimate(8, 6, 10)


@pytest.mark.parametrize(
    ("cause", "size", "told", "news"),
    [
        pytest.param("judge", EIGHT, None, True, id="the-first"),
        pytest.param("none", None, None, False, id="no-change"),
        pytest.param(None, None, ("judge", EIGHT), False, id="cannot-be-told"),
        pytest.param("judge", EIGHT, ("judge", EIGHT), False, id="told-already"),
        pytest.param("judge", estimate(9.9, 8, 12), ("judge", EIGHT), False, id="about-the-same"),
        pytest.param("judge", estimate(10.1, 8, 12), ("judge", EIGHT), True, id="larger-than-told"),
        pytest.param("judge", estimate(5.9, 4, 8), ("judge", EIGHT), True, id="smaller-than-told"),
        pytest.param("both", EIGHT, ("judge", EIGHT), True, id="another-cause"),
        pytest.param("judge", EIGHT, ("judge", estimate(8)), True, id="no-interval-was-told"),
        pytest.param("judge", estimate(None), None, False, id="no-size"),
    ],
)
def test_what_was_told_is_no_news(
    cause: Cause | None, size: Estimate | None, told: tuple[Cause | None, Estimate | None] | None, news: bool
) -> None:
    """Another cause, or a size that the interval did not allow for."""
    assert is_news(cause, size, told) is news


@pytest.mark.parametrize(
    ("cause", "size"),
    [
        pytest.param("judge", 1.0, id="judge"),
        pytest.param("agents", 3.0, id="agents"),
        pytest.param("both", 2.0, id="both"),
        pytest.param("none", None, id="none"),
        pytest.param(None, None, id="cannot-be-told"),
    ],
)
def test_the_size_is_that_of_the_part_that_is_named(cause: Cause | None, size: float | None) -> None:
    """Of both, it is the whole change."""
    found = size_of(cause, estimate(1), estimate(2), estimate(3))

    assert (found.value if found else None) == size
