"""The judge's part and the agents' part of a change: identified, sized, and left open without enough data."""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tarsy_scoring.statistics.drift import (
    WINDOW,
    AnchorJudgement,
    Cause,
    OrdinaryScore,
    explain_new_judge,
    find_change,
)

START = datetime(2026, 1, 1, tzinfo=UTC)


def scores(judge: str, totals: Sequence[float], stratum: str = "disk", first: int = 0) -> list[OrdinaryScore]:
    """One score an hour, by this judge."""
    return [OrdinaryScore(START + timedelta(hours=first + i), judge, stratum, t) for i, t in enumerate(totals)]


def anchors(old: Sequence[float], new: Sequence[float]) -> list[AnchorJudgement]:
    both = (("old", old), ("new", new))
    return [AnchorJudgement(f"a-{i}", judge, t) for judge, totals in both for i, t in enumerate(totals)]


def draws(seed: int, n: int, mean: float = 60, deviation: float = 12) -> list[float]:
    source = random.Random(seed)
    return [source.gauss(mean, deviation) for _ in range(n)]


# --- a new judge ---------------------------------------------------------------------------------------


def test_parts_and_errors_equal_the_textbook_formulas() -> None:
    """Paired t for anchors, Welch within strata for sessions; the agents' error combines both."""
    changes = [2.0, 4.0, 6.0, 8.0, 10.0, 0.0]
    before, after = draws(1, 30), draws(2, 40, 70, 6)
    hard_before, hard_after = draws(3, 20, 30), draws(4, 10, 45)
    ordinary = [
        *(*scores("old", before), *scores("new", after)),
        *(*scores("old", hard_before, "hard"), *scores("new", hard_after, "hard")),
    ]

    found = explain_new_judge(ordinary, anchors([50.0] * 6, [50 + c for c in changes]), "old", "new")

    weights = 30 * 40 / 70, 20 * 10 / 30
    shares = [w / sum(weights) for w in weights]
    sides = ((before, after), (hard_before, hard_after))
    whole = sum(s * (statistics.fmean(b) - statistics.fmean(a)) for s, (a, b) in zip(shares, sides, strict=True))
    error = math.sqrt(
        sum(s * s * statistics.variance(v) / len(v) for s, pair in zip(shares, sides, strict=True) for v in pair)
    )
    assert (found.judge.value, found.judge.n, found.anchors) == (5, 6, 6)
    assert found.judge.standard_error == pytest.approx(statistics.stdev(changes) / math.sqrt(6))
    # Student's quantile of 99 % with 5 degrees of freedom.
    assert found.judge.half_width == pytest.approx(3.3649 * statistics.stdev(changes) / math.sqrt(6), rel=2e-3)
    assert found.whole.value == pytest.approx(whole)
    assert found.whole.standard_error == pytest.approx(error)
    assert found.agents.value == pytest.approx(whole - 5)
    assert found.judge.standard_error is not None
    assert found.agents.standard_error == pytest.approx(math.hypot(error, found.judge.standard_error))
    assert found.compared == (50, 50)


def test_another_mix_of_alerts_is_no_change() -> None:
    """Hard alerts are 40 points below easy ones, and the new judge met more of them."""
    easy, hard = draws(1, 80, 80, 5), draws(2, 80, 40, 5)
    ordinary = [
        *(*scores("old", easy[:60], "easy"), *scores("old", hard[:20], "hard")),
        *(*scores("new", easy[60:], "easy"), *scores("new", hard[20:], "hard")),
    ]
    same = anchors(draws(3, 40), draws(3, 40))

    found = explain_new_judge(ordinary, same, "old", "new")
    joined = explain_new_judge([replace(s, stratum="") for s in ordinary], same, "old", "new")

    assert found.cause == "none"
    assert joined.cause == "agents"


def test_several_judgements_of_an_anchor_count_as_their_mean() -> None:
    judged = anchors([50, 60, 70, 80, 40], [58, 68, 78, 88, 48])
    more = [AnchorJudgement("a-0", "new", 60), AnchorJudgement("a-0", "old", 52), AnchorJudgement("a-9", "new", 10)]
    others = [AnchorJudgement("a-1", "another", 0), AnchorJudgement("a-8", "another", 0)]

    found = explain_new_judge([], [*judged, *more, *others], "old", "new")

    assert (found.judge.value, found.anchors, found.anchors_missing) == (8, 5, 1)
    assert "1 anchor still lacks a judgement by one of the judges." in found.meaning


def test_a_judge_with_equal_changes_has_a_narrow_interval() -> None:
    """Totals are rounded to whole points, so equal changes still have an interval, and it is narrow."""
    ordinary = [*scores("old", draws(1, 100)), *scores("new", draws(2, 100, 75))]
    level = [50.0] * 20

    still = explain_new_judge(ordinary, anchors(level, level), "old", "new")
    milder = explain_new_judge(ordinary, anchors(level, [total + 1 for total in level]), "old", "new")

    assert (still.cause, still.judge.value) == ("agents", 0)
    assert milder.cause == "both"
    # Student's quantile of 99 % with 19 degrees of freedom; two roundings hide a twelfth each.
    assert milder.judge.half_width == pytest.approx(2.5395 * math.sqrt(2 / 12 / 20), rel=2e-3)


def test_scores_of_other_judges_are_ignored() -> None:
    ordinary, same = [*scores("old", draws(1, 50)), *scores("new", draws(2, 50))], anchors(draws(3, 9), draws(4, 9))

    alone = explain_new_judge(ordinary, same, "old", "new")

    assert explain_new_judge([*scores("third", draws(5, 99, 5)), *ordinary], same, "old", "new") == alone
    assert alone.compared == (50, 50)


def test_the_change_began_with_the_first_session_of_the_new_judge() -> None:
    ordinary = [*scores("old", draws(1, 9)), *reversed(scores("new", draws(2, 9), first=9))]

    assert explain_new_judge(ordinary, [], "old", "new").began_at == START + timedelta(hours=9)


def test_the_likelier_part_is_named_where_neither_is_shown_by_itself() -> None:
    """With few unsteady anchors, sessions moved by more than chance, and the judge's part is uncertain."""
    ordinary = [*scores("old", draws(1, 300)), *scores("new", draws(2, 300, 65))]
    unsteady = anchors([50] * 6, [40, 60, 45, 56, 38, 61])

    found = explain_new_judge(ordinary, unsteady, "old", "new")

    assert (found.cause, found.is_clear) == ("agents", False)
    assert found.agents.low is not None
    assert found.agents.low < 0
    assert "Neither part is significant by itself; this is the likelier of the two." in found.meaning


def of_chains(shifts: dict[str, tuple[float, int]], spread: float = 8) -> list[AnchorJudgement]:
    """Anchors by chain, each chain with a shift of its own and so many anchors."""
    source = random.Random(5)
    return [
        AnchorJudgement(f"{chain}-{n}", judge, 50 + (shift + source.gauss(0, spread) if judge == "new" else 0), chain)
        for chain, (shift, count) in shifts.items()
        for n in range(count)
        for judge in ("old", "new")
    ]


def test_chains_that_differ_widen_the_interval_of_another() -> None:
    """Its only anchor moved by 30 points, other chains by 0, 7 and 9: its own shift is uncertain."""
    judged = of_chains({"mine": (30, 1), "a": (0, 40), "b": (7, 40), "c": (9, 40)})
    ordinary = [*scores("old", draws(1, 300)), *scores("new", draws(2, 300, 90))]

    found = explain_new_judge(ordinary, judged, "old", "new", chain="mine")

    assert found.judge.low is not None
    assert found.judge.high is not None
    assert found.judge.low < 0 < 30 < found.judge.high
    assert found.judge.method.startswith("paired t over anchors, random effects between chains")
    assert found.cause != "both"


def test_estimate_from_other_chains_equals_the_textbook_formula() -> None:
    """DerSimonian and Laird, for chains of one size: variance of their means less the part due to scatter."""
    chains = {"a": [0.0, 2.0, 4.0, 2.0], "b": [9.0, 7.0, 8.0, 8.0], "c": [16.0, 14.0, 15.0, 19.0]}
    judged = [
        AnchorJudgement(f"{chain}-{n}", judge, 50 + (change if judge == "new" else 0), chain)
        for chain, changes in chains.items()
        for n, change in enumerate(changes)
        for judge in ("old", "new")
    ]

    found = explain_new_judge(None, judged, "old", "new", chain="mine").judge

    within = statistics.fmean(statistics.variance(changes) for changes in chains.values())
    of_means = statistics.variance(statistics.fmean(changes) for changes in chains.values())
    between = of_means - within / 4
    assert found.value == pytest.approx((2 + 8 + 16) / 3)
    assert found.standard_error == pytest.approx(math.sqrt(between + of_means / 3))


def test_anchors_of_one_other_chain_are_taken_as_they_stand() -> None:
    judged = of_chains({"a": (8, 40)})

    assert (
        explain_new_judge(None, judged, "old", "new", chain="mine").judge
        == explain_new_judge(None, judged, "old", "new", chain="a").judge
    )


def test_rounding_of_coarse_totals_widens_the_interval() -> None:
    """Five equal changes of totals that are multiples of five: a rounding has a variance of 25 twelfths."""
    coarse = explain_new_judge(None, anchors([30, 45, 60, 75, 80], [35, 50, 65, 80, 85]), "old", "new").judge
    fine = explain_new_judge(None, anchors([31, 45, 60, 75, 80], [36, 50, 65, 80, 85]), "old", "new").judge

    # Student's quantile of 99 % with 4 degrees of freedom.
    assert coarse.half_width == pytest.approx(3.7469 * math.sqrt(2 * 25 / 12 / 5), rel=1e-4)
    assert fine.half_width == pytest.approx(3.7469 * math.sqrt(2 / 12 / 5), rel=1e-4)


# --- undecided causes ----------------------------------------------------------------------------------

MOVED = [*scores("old", draws(1, 99)), *scores("new", draws(2, 99, 75))]
SHIFTED_ANCHORS = anchors(draws(3, 30), [t + 8 for t in draws(4, 30)])
UNDECIDED: dict[str, tuple[list[OrdinaryScore], list[AnchorJudgement], Cause | None, str]] = {
    "no-anchor": (MOVED, [], None, "Not enough data: no anchor was judged by both judges; it takes 5."),
    "one-anchor": (MOVED, anchors([50], [60]), None, "only 1 anchor was judged by both judges; it takes 5."),
    "few-anchors": (MOVED, anchors([50] * 4, [60] * 4), None, "only 4 anchors were judged by both judges; it takes 5."),
    "few-sessions": (
        [*scores("old", draws(1, 99)), *scores("new", [1, 2, 3, 4])],
        anchors(draws(3, 30), draws(3, 30)),
        None,
        "99 sessions before and 4 after are too few in shared strata",
    ),
    "other-strata": (
        [*scores("old", draws(1, 99)), *scores("new", draws(2, 99), "memory")],
        anchors(draws(3, 30), draws(3, 30)),
        None,
        "0 sessions before and 0 after are too few in shared strata",
    ),
    "judge-but-no-sessions": ([], SHIFTED_ANCHORS, "judge", "Whether the agents changed too cannot be decided."),
    "no-anchor-but-a-change": (MOVED, [], None, "Scores changed: ordinary sessions get +"),
    "no-anchor-and-no-change": (
        [*scores("old", draws(1, 99)), *scores("new", draws(1, 99))],
        [],
        None,
        "No change of ordinary sessions is shown: +0.0 points (",
    ),
    "steady-judge-but-no-sessions": (
        [],
        anchors(draws(3, 30), draws(3, 30)),
        None,
        "No change of the judge is shown: the same sessions get +0.0 points (",
    ),
    "nothing-at-all": ([], [], None, "The cause of a change cannot be decided."),
    "quiet": (
        [*scores("old", draws(1, 99)), *scores("new", draws(1, 99))],
        anchors(draws(3, 30), draws(3, 30)),
        "none",
        "That does not mean equal: ordinary sessions may have moved by",
    ),
}


def test_missing_data_is_named_and_no_cause_is_invented() -> None:
    for name, (ordinary, judged, cause, sentence) in UNDECIDED.items():
        found = explain_new_judge(ordinary, judged, "old", "new")
        assert found.cause == cause, name
        assert sentence in " ".join(found.meaning), name


def test_anchors_alone_decide_about_the_judge() -> None:
    for shift, cause in ((8, "judge"), (0, "none")):
        found = explain_new_judge(None, anchors(draws(3, 30), [t + shift for t in draws(3, 30)]), "old", "new")

        assert (found.cause, found.is_clear) == (cause, True)
        assert (found.whole.value, found.agents.value) == (None, None)
        assert "Only anchors were tested" in " ".join(found.meaning)
        assert "too few" not in " ".join(found.meaning)


# --- under one judge -----------------------------------------------------------------------------------


def test_a_shift_is_found_with_its_time_and_size() -> None:
    """8 points at a standard deviation of 12 from the 300th of 450 scores on."""
    found = find_change(scores("one", [*draws(1, 300), *draws(100, 150, 68)]))

    assert (found.cause, found.judge.value, sum(found.compared)) == ("agents", 0, 450)
    assert found.began_at is not None
    assert abs(found.began_at - START - timedelta(hours=300)) <= timedelta(hours=50)
    assert found.agents == found.whole
    assert found.whole.value == pytest.approx(8, abs=3)


def test_the_time_of_a_late_shift_is_not_biased_to_the_middle() -> None:
    """90 of 690 scores are 12 points higher."""
    at = [find_change(scores("one", [*draws(s, 600), *draws(s + 99, 90, 72)])).began_at for s in range(5)]

    away = [abs(found - START - timedelta(hours=600)) for found in at if found is not None]
    assert len(away) >= 4
    assert statistics.median(away) <= timedelta(hours=5)


def test_the_order_of_rows_changes_nothing() -> None:
    known = scores("one", [*draws(1, 300), *draws(2, 150, 68)])

    assert find_change(random.Random(1).sample(known, len(known))) == find_change(known)


def test_another_mix_is_no_change_under_one_judge() -> None:
    easy = [replace(s, stratum="easy") for s in scores("one", draws(1, 150, 80))]
    hard = [replace(s, stratum="hard") for s in scores("one", draws(2, 150, 40), first=100)]

    assert find_change([*easy, *hard]).cause == "none"
    assert find_change([replace(s, stratum="") for s in (*easy, *hard)]).cause == "agents"


def test_only_the_last_window_is_watched() -> None:
    ancient = scores("one", draws(1, 200, 20))
    recent = scores("one", draws(2, WINDOW), first=200)

    assert find_change([*ancient, *recent]) == find_change(recent)
    assert find_change(recent).cause == "none"


def test_little_data_raises_no_alarm() -> None:
    for totals, cause in (([70.0] * 59, None), ([70.0] * 60, "none")):
        found = find_change(scores("one", totals))
        assert (found.cause, found.began_at) == (cause, None)
        assert ("too few to watch" in found.meaning[0]) == (cause is None)
