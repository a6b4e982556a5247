"""What changed is told apart, named with its size, and not named where it cannot be told."""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from benchmarks.years import NewJudge, Year, causes_found, first_alarms

from tarsy_scoring.statistics.drift import (
    WINDOW,
    AnchorJudgement,
    Cause,
    OrdinaryScore,
    chance_of_bridge,
    explain_new_judge,
    find_change,
)

START = datetime(2026, 1, 1, tzinfo=UTC)


def scores(judge: str, totals: Sequence[float], stratum: str = "disk", first: int = 0) -> list[OrdinaryScore]:
    """One an hour."""
    return [OrdinaryScore(START + timedelta(hours=first + i), judge, stratum, t) for i, t in enumerate(totals)]


def anchors(old: Sequence[float], new: Sequence[float]) -> list[AnchorJudgement]:
    both = (("old", old), ("new", new))
    return [AnchorJudgement(f"a-{i}", judge, t) for judge, totals in both for i, t in enumerate(totals)]


def draws(seed: int, n: int, mean: float = 60, deviation: float = 12) -> list[float]:
    source = random.Random(seed)
    return [source.gauss(mean, deviation) for _ in range(n)]


# --- a new judge: years of them ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(NewJudge(8, 0), id="judge"),
        pytest.param(NewJudge(0, 8), id="agents"),
        pytest.param(NewJudge(8, 8), id="both"),
        pytest.param(NewJudge(8, -8), id="both-against-each-other"),
    ],
)
def test_the_cause_is_named_rightly(planted: NewJudge) -> None:
    """8 points, 40 anchors judged once by each, 300 sessions a side: in 95 of 100 cases or more."""
    runs = 200

    found = causes_found(planted, runs, seed=1)

    assert found[planted.cause] >= 0.95 * runs


def test_quiet_changes_of_judge_seldom_raise_an_alarm() -> None:
    """4 of 100: more than 20 of 300 would come up once in a hundred times, fewer than 4 too: then it would sleep."""
    found = causes_found(NewJudge(0, 0), 300, seed=1)

    assert 4 <= 300 - found["none"] <= 20


# --- a new judge: by hand ------------------------------------------------------------------------------


def test_parts_and_errors_are_those_of_the_textbook() -> None:
    """Paired for anchors, Welch within strata for sessions, and the agents' error has both in it."""
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


def test_another_mix_of_incidents_is_no_change() -> None:
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
    """However many there are, it is one session; one that a judge has not judged yet is counted as missing."""
    told = anchors([50, 60, 70, 80, 40], [58, 68, 78, 88, 48])
    more = [AnchorJudgement("a-0", "new", 60), AnchorJudgement("a-0", "old", 52), AnchorJudgement("a-9", "new", 10)]
    others = [AnchorJudgement("a-1", "another", 0), AnchorJudgement("a-8", "another", 0)]

    found = explain_new_judge([], [*told, *more, *others], "old", "new")

    assert (found.judge.value, found.anchors, found.anchors_missing) == (8, 5, 1)
    assert "1 anchor still lacks a judgement by one of the judges." in found.meaning


def test_a_judge_that_repeats_itself_to_the_point_is_known_well() -> None:
    """Whole totals hide half a point, so that five equal changes have an interval, and it is narrow."""
    ordinary = [*scores("old", draws(1, 100)), *scores("new", draws(2, 100, 75))]
    level = [50.0] * 20

    still = explain_new_judge(ordinary, anchors(level, level), "old", "new")
    milder = explain_new_judge(ordinary, anchors(level, [total + 1 for total in level]), "old", "new")

    assert (still.cause, still.judge.value) == ("agents", 0)
    assert milder.cause == "both"
    # Student's quantile of 99 % with 19 degrees of freedom; two roundings hide a twelfth each.
    assert milder.judge.half_width == pytest.approx(2.5395 * math.sqrt(2 / 12 / 20), rel=2e-3)


def test_scores_of_other_judges_are_left_alone() -> None:
    """A third one in between changes nothing."""
    ordinary, same = [*scores("old", draws(1, 50)), *scores("new", draws(2, 50))], anchors(draws(3, 9), draws(4, 9))

    alone = explain_new_judge(ordinary, same, "old", "new")

    assert explain_new_judge([*scores("third", draws(5, 99, 5)), *ordinary], same, "old", "new") == alone
    assert alone.compared == (50, 50)


def test_the_change_began_with_the_first_session_of_the_new_judge() -> None:
    """In whatever order they come."""
    ordinary = [*scores("old", draws(1, 9)), *reversed(scores("new", draws(2, 9), first=9))]

    assert explain_new_judge(ordinary, [], "old", "new").began_at == START + timedelta(hours=9)


def test_the_likelier_part_is_named_where_neither_is_shown_by_itself() -> None:
    """Few unsteady anchors: sessions moved by far more than chance, and the judge's part could be a lot or nothing."""
    ordinary = [*scores("old", draws(1, 300)), *scores("new", draws(2, 300, 65))]
    unsteady = anchors([50] * 6, [40, 60, 45, 56, 38, 61])

    found = explain_new_judge(ordinary, unsteady, "old", "new")

    assert (found.cause, found.is_clear) == ("agents", False)
    assert found.agents.low is not None
    assert found.agents.low < 0
    assert "Neither part is shown by itself; this is the likelier of the two." in found.meaning


def of_chains(shifts: dict[str, tuple[float, int]], spread: float = 8) -> list[AnchorJudgement]:
    """Anchors by chain, each chain with a shift of its own and so many anchors."""
    source = random.Random(5)
    return [
        AnchorJudgement(f"{chain}-{n}", judge, 50 + (shift + source.gauss(0, spread) if judge == "new" else 0), chain)
        for chain, (shift, count) in shifts.items()
        for n in range(count)
        for judge in ("old", "new")
    ]


def test_chains_that_differ_say_little_of_another() -> None:
    """One anchor of its own, and chains that moved by 0, 7, 9 and 30: its own shift may be any of these."""
    judged = of_chains({"mine": (30, 1), "a": (0, 40), "b": (7, 40), "c": (9, 40)})
    ordinary = [*scores("old", draws(1, 300)), *scores("new", draws(2, 300, 90))]

    found = explain_new_judge(ordinary, judged, "old", "new", chain="mine")

    assert found.judge.low is not None
    assert found.judge.high is not None
    assert found.judge.low < 0 < 30 < found.judge.high
    assert found.judge.method.startswith("paired t over anchors, random effects between chains")
    assert found.cause != "both"


def test_chains_that_are_alike_make_one_sample() -> None:
    """The interval is about as wide as that of as many anchors of one chain."""
    names = ["mine", "a", "b", "c"]
    widths = []
    for seed in range(20):
        values = draws(seed, 120, 8, 8)
        judged = [
            AnchorJudgement(f"{n}", judge, 50 + (value if judge == "new" else 0), names[n % 4])
            for n, value in enumerate(values)
            for judge in ("old", "new")
        ]
        one = explain_new_judge(None, [replace(j, chain_id="mine") for j in judged], "old", "new", chain="mine").judge
        several = explain_new_judge(None, judged, "old", "new", chain="mine").judge
        assert one.half_width is not None
        assert several.half_width is not None
        widths.append(several.half_width / one.half_width)

    assert statistics.median(widths) < 1.2


def test_borrowed_parts_are_those_of_the_textbook() -> None:
    """DerSimonian and Laird, for chains of one size: the variance of their means less what scatter explains."""
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


def test_own_anchors_count_more_where_chains_differ() -> None:
    """Ten of its own that moved by 20 against chains that moved by 0 and 5."""
    shifts = {"mine": (20.0, 10), "a": (0.0, 40), "b": (5.0, 40)}

    found = explain_new_judge(None, of_chains(shifts), "old", "new", chain="mine").judge
    alone = explain_new_judge(None, of_chains({"mine": (20.0, 10)}), "old", "new", chain="mine").judge

    assert found.value == pytest.approx(20, abs=4)
    assert found.half_width is not None
    assert alone.half_width is not None
    assert found.half_width <= alone.half_width


def test_anchors_of_one_other_chain_are_taken_as_they_stand() -> None:
    """One chain shows no difference between chains."""
    judged = of_chains({"a": (8, 40)})

    assert (
        explain_new_judge(None, judged, "old", "new", chain="mine").judge
        == explain_new_judge(None, judged, "old", "new", chain="a").judge
    )


def test_what_coarse_totals_hide_is_in_the_interval() -> None:
    """Five equal changes of totals that are multiples of five: 25 twelfths hidden in each of two totals."""
    coarse = explain_new_judge(None, anchors([30, 45, 60, 75, 80], [35, 50, 65, 80, 85]), "old", "new").judge
    fine = explain_new_judge(None, anchors([31, 45, 60, 75, 80], [36, 50, 65, 80, 85]), "old", "new").judge

    # Student's quantile of 99 % with 4 degrees of freedom.
    assert coarse.half_width == pytest.approx(3.7469 * math.sqrt(2 * 25 / 12 / 5), rel=2e-2)
    assert fine.half_width == pytest.approx(3.7469 * math.sqrt(2 / 12 / 5), rel=2e-2)


# --- what cannot be told -------------------------------------------------------------------------------

MOVED = [*scores("old", draws(1, 99)), *scores("new", draws(2, 99, 75))]
SHIFTED_ANCHORS = anchors(draws(3, 30), [t + 8 for t in draws(4, 30)])
UNTOLD: dict[str, tuple[list[OrdinaryScore], list[AnchorJudgement], Cause | None, str]] = {
    "no-anchor": (MOVED, [], None, "Of this nothing is known: no anchor was judged by both judges; it takes 5."),
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
    "judge-but-no-sessions": ([], SHIFTED_ANCHORS, "judge", "Whether the agents changed too cannot be told."),
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
    "nothing-at-all": ([], [], None, "What is behind a change cannot be told."),
    "quiet": (
        [*scores("old", draws(1, 99)), *scores("new", draws(1, 99))],
        anchors(draws(3, 30), draws(3, 30)),
        "none",
        "That does not mean equal: ordinary sessions may have moved by",
    ),
}


@pytest.mark.parametrize("name", UNTOLD)
def test_what_cannot_be_told_is_said(name: str) -> None:
    """No cause is made up, and the reason names what is lacking."""
    ordinary, judged, cause, sentence = UNTOLD[name]

    found = explain_new_judge(ordinary, judged, "old", "new")

    assert found.cause == cause
    assert sentence in " ".join(found.meaning)


@pytest.mark.parametrize(
    ("shift", "cause"), [pytest.param(8, "judge", id="shifted"), pytest.param(0, "none", id="steady")]
)
def test_anchors_alone_are_clear_about_the_judge(shift: float, cause: Cause) -> None:
    """Sessions that are left out on purpose are not missed; whether the agents changed is left open."""
    found = explain_new_judge(None, anchors(draws(3, 30), [t + shift for t in draws(3, 30)]), "old", "new")

    assert (found.cause, found.is_clear) == (cause, True)
    assert (found.whole.value, found.agents.value) == (None, None)
    assert "Anchors alone were looked at" in " ".join(found.meaning)
    assert "too few" not in " ".join(found.meaning)


def test_one_judge_is_no_new_judge() -> None:
    """Everything would be the agents'; another question answers that."""
    with pytest.raises(ValueError, match="the same judge"):
        explain_new_judge([], [], "one", "one")


# --- under one judge -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("farthest", "chance"), [(0.0, 1.0), (0.2, 1.0), (1.2238, 0.10), (1.3581, 0.05), (1.6276, 0.01), (2.225, 1e-4)]
)
def test_the_bridge_strays_as_its_law_says(farthest: float, chance: float) -> None:
    """Kolmogorov's table."""
    assert chance_of_bridge(farthest) == pytest.approx(chance, rel=5e-3)


def test_a_shift_is_found_with_its_time_and_size() -> None:
    """8 points at a standard deviation of 12 from the 300th score on: mostly within 25 scores of it."""
    began = START + timedelta(hours=300)
    found = [find_change(scores("one", [*draws(seed, 300), *draws(seed + 99, 150, 68)])) for seed in range(30)]

    shown = [(f.began_at, f.whole.low, f.whole.high) for f in found if f.cause == "agents"]
    assert len(shown) >= 28
    assert sum(at is not None and abs(at - began) <= timedelta(hours=25) for at, _, _ in shown) >= 20
    # 98 of 100, a little less for being sought out.
    assert sum(low is not None and high is not None and low <= 8 <= high for _, low, high in shown) >= 25
    assert all(f.agents == f.whole and f.judge.value == 0 and sum(f.compared) == 450 for f in found)


def test_the_time_of_a_late_shift_is_not_drawn_to_the_middle() -> None:
    """90 of 690 scores are 12 points higher: half of the times found are within 5 scores."""
    at = [find_change(scores("one", [*draws(s, 600), *draws(s + 99, 90, 72)])).began_at for s in range(20)]

    away = [abs(found - START - timedelta(hours=600)) for found in at if found is not None]
    assert len(away) >= 15
    assert statistics.median(away) <= timedelta(hours=5)


def test_the_order_of_rows_changes_nothing() -> None:
    """They are put in order of time."""
    known = scores("one", [*draws(1, 300), *draws(2, 150, 68)])

    assert find_change(random.Random(1).sample(known, len(known))) == find_change(known)


def test_one_look_alarms_as_often_as_it_may() -> None:
    """4 of 100 for a single look: over 20 of 300 would come up once in a hundred times, below 4 it would sleep."""
    alarms = sum(find_change(scores("one", draws(seed, 200)), looks=1).cause == "agents" for seed in range(300))

    assert 4 <= alarms <= 20


def test_daily_looks_at_quiet_years_raise_no_alarm() -> None:
    """At most 5 of 100 years; two of ten half years come up once in thirty times, ten if every look may err alone."""
    found = first_alarms(Year(days=180, per_day=6), 10, seed=1)

    assert sum(day is not None for day in found) < 2


def test_a_shift_is_found_within_weeks() -> None:
    """8 points, 10 scores a day; none before it is there."""
    found = first_alarms(Year(shift=8, shift_day=60, days=110), 8, seed=1)

    assert all(day is not None and 60 <= day < 100 for day in found)


def test_another_mix_is_no_change_under_one_judge() -> None:
    """From easy to hard alerts, 40 points apart."""
    easy = [replace(s, stratum="easy") for s in scores("one", draws(1, 150, 80))]
    hard = [replace(s, stratum="hard") for s in scores("one", draws(2, 150, 40), first=100)]

    assert find_change([*easy, *hard]).cause == "none"
    assert find_change([replace(s, stratum="") for s in (*easy, *hard)]).cause == "agents"


def test_only_the_last_window_is_looked_at() -> None:
    """A change that was found long ago is found no more."""
    ancient = scores("one", draws(1, 200, 20))
    recent = scores("one", draws(2, WINDOW), first=200)

    assert find_change([*ancient, *recent]) == find_change(recent)
    assert find_change(recent).cause == "none"


@pytest.mark.parametrize(
    ("totals", "cause"), [([70.0] * 59, None), ([70.0] * 60, "none")], ids=["too-few", "all-the-same"]
)
def test_little_to_watch_raises_no_alarm(totals: list[float], cause: Cause | None) -> None:
    """59 scores cannot be told; 60 that never vary have not changed."""
    found = find_change(scores("one", totals))

    assert (found.cause, found.began_at) == (cause, None)
    assert ("too few to watch" in found.meaning[0]) == (cause is None)


def test_scores_of_several_judges_are_not_watched() -> None:
    """Their change could be the judge's."""
    with pytest.raises(ValueError, match="several judges"):
        find_change([*scores("old", [70.0] * 60), *scores("new", [70.0] * 60)])
