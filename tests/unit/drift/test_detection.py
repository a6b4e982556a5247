"""When there is a look, and what of it is news."""

import random
from datetime import UTC, datetime, timedelta

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


def test_who_judges_now_and_who_did_before() -> None:
    """Substitutes found no tenure, and a judge that returns after another judge's tenure is a new one."""
    cases: list[tuple[str, tuple[str | None, str, int, int]]] = [
        ("a" * 100, (None, "a", 0, 100)),  # one judge
        ("a" * 100 + "b" * 50, ("a", "b", 100, 50)),  # another took over
        ("a" * 100 + "b" * 27, ("a", "b", 100, 27)),  # just took over
        ("a" * 100 + "b" * 26, (None, "b", 0, 26)),  # not quite
        ("a" * 100 + "b" * 14, (None, "a", 0, 100)),  # not yet most
        ("ab" * 200, (None, "a", 0, 200)),  # taking turns
        ("aaab" * 30 + "b" * 60, (None, "b", 0, 90)),  # a stand in in an outage
        (("a" * 9 + "b") * 12 + "b" * 60, ("a", "b", 108, 63)),  # few of it before
        (("a" * 13 + "bb") * 8 + "b" * 60, (None, "b", 0, 76)),  # more than few before
        ("aaab" * 30 + "cccb" * 30, ("a", "c", 90, 90)),  # a stand in throughout
        ("a" * 60 + "b" * 5 + "a" * 60, (None, "a", 0, 120)),  # a stand in
        ("a" * 60 + "b" * 60 + "a" * 60, ("b", "a", 60, 60)),  # back again
        ("a" * 60 + "b" * 60 + "c" * 60, ("b", "c", 60, 60)),  # three judges
        ("ab" * 10 + "a" * 60 + "cb" * 5 + "c" * 60, ("a", "c", 70, 65)),  # stand ins of both
        ("a" * 300 + "b" * 14 + "c" * 320, ("a", "c", 300, 320)),  # a short stand in between
        ("a" * 300 + "b" * 16 + "c" * 320, ("a", "c", 300, 320)),  # a stand in between
        ("a" * 300 + "b" * 26 + "c" * 320, ("a", "c", 300, 320)),  # a long stand in between
        ("a" * 300 + "b" * 29 + "c" * 320, ("a", "c", 300, 320)),  # not quite a tenure between
        ("a" * 300 + "b" * 30 + "c" * 320, ("b", "c", 30, 320)),  # a tenure between
        ("a" * 60 + "bc" * 20 + "d" * 60, ("a", "d", 60, 60)),  # two stand ins between
        ("a" * 60 + "b" * 28 + "a" * 60, (None, "a", 0, 120)),  # back from behind a stand in
        ("d" * 60 + "a" * 60 + "b" * 28 + "a" * 60, ("d", "a", 60, 120)),  # an older change
        ("b" * 20 + "c" * 60, (None, "c", 0, 60)),  # nobody tenureed before
        ("abc" * 100, (None, "a", 0, 100)),  # three in rotation
    ]

    for judges, expected in cases:
        assert in_office(judges) == expected, judges


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


EIGHT = estimate(8, 6, 10)


def test_a_published_change_is_no_news() -> None:
    cases: list[tuple[Cause | None, Estimate | None, tuple[Cause | None, Estimate | None] | None, bool]] = [
        ("judge", EIGHT, None, True),  # the first
        ("none", None, None, False),  # no change
        (None, None, ("judge", EIGHT), False),  # cannot be told
        ("judge", EIGHT, ("judge", EIGHT), False),  # told already
        ("judge", estimate(9.9, 8, 12), ("judge", EIGHT), False),  # about the same
        ("judge", estimate(10.1, 8, 12), ("judge", EIGHT), True),  # larger than told
        ("judge", estimate(5.9, 4, 8), ("judge", EIGHT), True),  # smaller than told
        ("both", EIGHT, ("judge", EIGHT), True),  # another cause
        ("judge", EIGHT, ("judge", estimate(8)), True),  # no interval was told
        ("judge", estimate(None), None, False),  # no size
    ]

    for cause, size, published, news in cases:
        assert is_news(cause, size, published) is news


def test_the_size_is_that_of_the_part_that_is_named() -> None:
    sizes: dict[Cause | None, float | None] = {"judge": 1.0, "agents": 3.0, "both": 2.0, "none": None, None: None}

    for cause, size in sizes.items():
        found = size_of(cause, estimate(1), estimate(2), estimate(3))
        assert (found.value if found else None) == size
