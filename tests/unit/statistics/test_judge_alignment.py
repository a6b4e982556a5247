"""Totals of several judges on one scale: which judges anchors connect, and the parts of a difference."""

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarsy_scoring.statistics.drift import AnchorJudgement, OrdinaryScore, explain_new_judge
from tarsy_scoring.statistics.judge_alignment import Gap, Parts, align_judges, find_gap, take_apart
from tarsy_scoring.statistics.pairing import Value, pair_values


def anchors(**by_judge: Sequence[float]) -> list[AnchorJudgement]:
    """The n-th total of every judge is that of the n-th anchor."""
    return [AnchorJudgement(f"a-{i}", judge, t) for judge, totals in by_judge.items() for i, t in enumerate(totals)]


def values(judge: str | None, totals: Sequence[float], kind: str = "disk") -> list[Value]:
    return [Value(total, judge, kind) for total in totals]


def draws(seed: int, n: int, mean: float = 60, deviation: float = 12) -> list[float]:
    source = random.Random(seed)
    return [source.gauss(mean, deviation) for _ in range(n)]


def parts_of(first: Sequence[Value], second: Sequence[Value], judged: Sequence[AnchorJudgement]) -> Parts:
    counts = {judge: sum(v.judge == judge for v in (*first, *second)) for judge in {v.judge for v in (*first, *second)}}
    judges = align_judges(counts, judged)
    return take_apart(pair_values(first, second, lambda judge: judges[judge].scale), judges)


# --- one scale -----------------------------------------------------------------------------------------

FIVE = (50, 60, 70, 40, 55)


def scales(counts: Mapping[str | None, int], judged: Sequence[AnchorJudgement]) -> dict[str | None, str | None]:
    return {name: judge.scale for name, judge in align_judges(counts, judged).items()}


def test_the_judge_with_the_most_totals_gives_the_scale() -> None:
    found = align_judges({"old": 30, "new": 40}, anchors(old=FIVE, new=[t + 8 for t in FIVE]))

    assert {name: (j.scale, j.points, j.shift.estimate.n) for name, j in found.items()} == {
        "new": ("new", 0, 0),
        "old": ("new", -8, 5),
    }


@pytest.mark.parametrize(
    ("judged", "expected"),
    [
        pytest.param([], {"old": "old", "new": "new"}, id="no-anchors"),
        pytest.param(anchors(old=FIVE[:4], new=FIVE[:4]), {"old": "old", "new": "new"}, id="four-anchors"),
        pytest.param(
            [*anchors(old=FIVE), *(AnchorJudgement(f"b-{i}", "new", 50) for i in range(9))],
            {"old": "old", "new": "new"},
            id="other-anchors-each",
        ),
        pytest.param(anchors(old=FIVE, new=FIVE), {"old": "old", "new": "old"}, id="five-anchors"),
    ],
)
def test_five_anchors_connect_two_judges(judged: list[AnchorJudgement], expected: dict[str | None, str | None]) -> None:
    assert scales({"old": 30, "new": 20}, judged) == expected


def test_judges_are_not_connected_over_a_third() -> None:
    judged = [*anchors(a=FIVE, b=FIVE), *(AnchorJudgement(f"x-{i}", j, 50 + i) for j in ("b", "c") for i in range(5))]

    assert scales({"a": 30, "b": 10, "c": 20}, judged) == {"a": "b", "b": "b", "c": "b"}
    assert scales({"a": 30, "c": 20}, judged) == {"a": "a", "c": "c"}
    assert scales({"a": 30, "b": 10, "c": 20, None: 5}, judged)[None] is None


def test_order_of_judges_does_not_change_the_scale() -> None:
    judged = anchors(a=FIVE, b=FIVE, c=FIVE)

    forwards = scales({"a": 10, "b": 10, "c": 10}, judged)

    assert scales({"c": 10, "b": 10, "a": 10}, judged[::-1]) == forwards
    assert set(forwards.values()) == {"a"}


# --- parts of a difference -----------------------------------------------------------------------------


def test_parts_equal_those_of_drift_if_each_version_had_one_judge() -> None:
    """Parts and errors equal those of `explain_new_judge`; intervals differ, since they are of 95 % here."""
    first = [*values("old", draws(1, 30)), *values("old", draws(2, 20, 40), "memory")]
    second = [*values("new", draws(3, 40, 70, 6)), *values("new", draws(4, 10, 45), "memory")]
    judged = anchors(old=draws(5, 12), new=draws(6, 12, 66))

    found = parts_of(first, second, judged)

    start = datetime(2026, 1, 1, tzinfo=UTC)
    ordinary = [OrdinaryScore(start, v.judge or "", v.circumstances, v.number) for v in (*first, *second)]
    drift = explain_new_judge(ordinary, judged, "old", "new")
    for mine, theirs in ((found.whole, drift.whole), (found.judges, drift.judge), (found.agents, drift.agents)):
        assert mine.value == pytest.approx(theirs.value)
        assert mine.standard_error == pytest.approx(theirs.standard_error)
        assert mine.half_width is not None
        assert theirs.half_width is not None
        assert mine.half_width < theirs.half_width


def test_a_judges_part_is_weighted_by_the_change_of_its_share() -> None:
    """From a tenth to seven tenths of the sessions: six tenths of its shift and of its error."""
    changes = [6.0, 10.0, 8.0, 4.0, 12.0, 8.0]
    judged = anchors(old=[50] * 6, new=[50 + c for c in changes])
    first = [*values("old", draws(1, 90)), *values("new", draws(2, 10, 68))]
    second = [*values("old", draws(3, 30)), *values("new", draws(4, 70, 68))]

    found = parts_of(first, second, judged)

    error = 0.6 * statistics.stdev(changes) / math.sqrt(6)
    assert found.judges.value == pytest.approx(0.6 * 8)
    assert found.judges.standard_error == pytest.approx(error)
    same_judge = [[v.number - (8 if v.judge == "new" else 0) for v in side] for side in (first, second)]
    sessions = math.sqrt(sum(statistics.variance(side) / 100 for side in same_judge))
    assert found.agents.standard_error == pytest.approx(math.hypot(sessions, error))
    assert found.agents.value == pytest.approx(statistics.fmean(same_judge[1]) - statistics.fmean(same_judge[0]))


def test_the_same_mix_of_judges_gives_the_judges_no_part() -> None:
    judged = anchors(old=FIVE, new=[90, 10, 80, 20, 99])
    first = [*values("old", draws(1, 20)), *values("new", draws(2, 20, 90))]
    second = [*values("old", draws(3, 40)), *values("new", draws(4, 40, 90))]

    found = parts_of(first, second, judged)

    assert (found.judges.value, found.judges.standard_error) == (0, 0)
    assert found.agents.value == pytest.approx(found.whole.value)


def test_errors_of_several_judges_are_added() -> None:
    """All contain the anchor totals of the scale's judge; treated as independent, they would be too small."""
    base, other, third = draws(1, 9), draws(2, 9), draws(3, 9)
    judged = anchors(a=base, b=other, c=third)
    first, second = values("a", draws(4, 40)), [*values("b", draws(5, 20)), *values("c", draws(6, 20))]

    found = parts_of(first, second, judged)

    changes = [[t - b for t, b in zip(totals, base, strict=True)] for totals in (other, third)]
    errors = [0.5 * statistics.stdev(c) / 3 for c in changes]
    exact = statistics.stdev([(b + c) / 2 for b, c in zip(*changes, strict=True)]) / 3
    assert found.judges.standard_error == pytest.approx(sum(errors))
    assert math.hypot(*errors) < exact <= sum(errors)
    assert found.judges.value == pytest.approx(statistics.fmean([*changes[0], *changes[1]]))


def test_degrees_of_freedom_follow_the_fewest_anchors() -> None:
    judged = [*anchors(a=draws(1, 30), b=draws(2, 30)), *anchors(c=draws(3, 5))]

    found = parts_of(values("a", draws(4, 40)), [*values("b", draws(5, 20)), *values("c", draws(6, 20))], judged)

    assert found.judges.standard_error is not None
    assert found.judges.half_width == pytest.approx(2.776 * found.judges.standard_error, rel=5e-3)
    assert found.judges.n == 5


TOTALS = st.lists(st.integers(20, 80), min_size=6, max_size=12)


@settings(max_examples=40)
@given(
    st.tuples(TOTALS, TOTALS, TOTALS, TOTALS),
    st.lists(st.tuples(st.integers(20, 80), st.integers(20, 80)), min_size=5, max_size=9),
    st.integers(-20, 20),
)
def test_a_milder_judge_does_not_change_the_agents_part(
    totals: tuple[list[int], list[int], list[int], list[int]], anchored: list[tuple[int, int]], milder: int
) -> None:

    def parts(shift: int) -> Parts:
        first = [*values("old", totals[0]), *values("new", [t + shift for t in totals[1]])]
        second = [*values("old", totals[2]), *values("new", [t + shift for t in totals[3]])]
        return parts_of(first, second, anchors(old=[a for a, _ in anchored], new=[b + shift for _, b in anchored]))

    plain, shifted = parts(0), parts(milder)

    for name in ("value", "low", "high"):
        assert getattr(shifted.agents, name) == pytest.approx(getattr(plain.agents, name), abs=1e-6)
    for found in (plain, shifted):
        assert found.whole.value == pytest.approx((found.judges.value or 0) + (found.agents.value or 0), abs=1e-6)


# --- judges without common anchors ---------------------------------------------------------------------


def gap(judged: Sequence[AnchorJudgement], totals: Sequence[tuple[str | None, str | None]]) -> Gap | None:
    counts = {judge: sum(j == judge for _, j in totals) for _, judge in totals}
    return find_gap(totals, align_judges(counts, judged), judged)


TWO_JUDGES = [("kubernetes", "old")] * 5 + [("kubernetes", "new")] * 4


@pytest.mark.parametrize(
    ("judged", "totals", "found"),
    [
        pytest.param(anchors(old=FIVE, new=FIVE), TWO_JUDGES, None, id="connected"),
        pytest.param(anchors(old=FIVE, new=FIVE[:2]), TWO_JUDGES, Gap(2, 3), id="not-judged-yet"),
        pytest.param([], TWO_JUDGES, Gap(0, 0), id="no-anchors"),
        pytest.param([], [("kubernetes", "old"), ("network", "new")], None, id="a-chain-each"),
        pytest.param(
            anchors(c=FIVE[:1], d=FIVE),
            [*TWO_JUDGES[4:6], *[("network", "c")] * 3, *[("network", "d")] * 2],
            Gap(1, 4),
            id="the-chain-that-loses-most",
        ),
        pytest.param([], [("kubernetes", "old"), ("kubernetes", None)], Gap(0, 0), id="an-unknown-judge"),
    ],
)
def test_gap_counts_the_anchors_that_two_judges_lack(
    judged: list[AnchorJudgement], totals: list[tuple[str | None, str | None]], found: Gap | None
) -> None:
    assert gap(judged, totals) == found
