"""The week of a chain: what is compared, what is marked, and what it says."""

from datetime import date
from typing import Any

import pytest

from tarsy_scoring.analytics.week import ChainWeek, Week, combine
from tarsy_scoring.web.pages.week import Held, held_up

DAY = date(2026, 3, 5)


def rows(
    chain: str, totals: list[int], *, is_later: bool, judge: str = "judge-1"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rows of `FIGURES` and `TOTALS` of one judge in one week."""
    key = {"chain_id": chain, "criteria": "c", "judge_fingerprint": judge, "is_later": is_later}
    figures = {"scores": len(totals), "outcomes": 0, "passed": 0, "judging_usd": 0.0, "judging_costs": 0}
    sums = {"n": len(totals), "sum": float(sum(totals)), "squares": float(sum(t * t for t in totals)), "correct": 0}
    return key | figures | {"first_day": DAY}, key | sums


def weeks(*found: tuple[dict[str, Any], dict[str, Any]]) -> dict[str | None, ChainWeek]:
    figures, totals = zip(*found, strict=True)
    return {chain.chain_id: chain for chain in combine(figures, totals)}


def pair(chain: str, before: list[int], now: list[int]) -> tuple[Any, Any]:
    return rows(chain, before, is_later=False), rows(chain, now, is_later=True)


@pytest.mark.parametrize(("others", "is_marked"), [(0, True), (9, False)], ids=["alone", "among-ten"])
def test_a_difference_is_judged_among_all_chains(others: int, is_marked: bool) -> None:
    """With p = 0.02 one chain is clear by itself, and one of ten chains is not."""
    quiet = [row for n in range(others) for row in pair(f"quiet-{n}", [50, 60, 70, 55, 65], [51, 60, 69, 55, 65])]
    found = weeks(*pair("k", [50, 60, 70, 55, 65], [66, 76, 86, 71, 81]), *quiet)["k"]
    assert found.is_marked is is_marked
    assert ("16.0 points higher" in found.in_words) is is_marked


def test_totals_are_compared_under_one_judge() -> None:
    """That with most scores in both weeks; the mean of all judges may differ for their scales alone."""
    found = weeks(
        *pair("k", [50, 60, 70, 55, 65], [50, 60, 70, 55, 65]),
        rows("k", [90] * 50, is_later=True, judge="milder"),
    )["k"]
    assert (found.points, found.is_marked, found.now.scores) == (0.0, False, 55)
    assert found.new_judges == [("c", DAY)]


def test_the_first_judge_of_a_chain_is_no_change() -> None:
    found = weeks(rows("k", [60], is_later=True))["k"]
    assert (found.new_judges, found.in_words) == ([], "1 score, 0 % right, none the week before")


SAME = [50, 60, 70, 55, 65]
STEADY = [60, 61, 62] * 20


@pytest.mark.parametrize(
    ("chains", "said"),
    [
        ({"a": ([], SAME), "b": (SAME, [])}, ""),
        (
            {"a": (STEADY, [t - 20 for t in STEADY]), "b": (SAME, [40, 50, 60, 45, 55])},
            "1 chain got worse: a, 61.0 to 41.0 (60 and 60 scores).",
        ),
        (
            {"a": (STEADY, [t - 1 if t == 60 else t for t in STEADY]), "b": (SAME, [45, 55, 65, 50, 60])},
            "No chain got clearly worse; the largest fall is b, 60.0 to 55.0 (5 and 5 scores: too few to tell).",
        ),
        (
            {"a": (STEADY, [60, 61] * 6 + STEADY[12:])},
            "No chain got clearly worse; the largest fall is a, 61.0 to 60.9 (60 and 60 scores: no more than chance "
            "gives).",
        ),
        (
            {"a": ([90], [50])},
            "No chain got clearly worse; the largest fall is a, 90.0 to 50.0 (1 and 1 scores: too few to tell).",
        ),
        ({"a": (SAME, [90] * 5)}, "No chain got worse: no mean total fell."),
    ],
    ids=["nothing-to-compare", "worse", "too-few", "chance", "one-each", "better"],
)
def test_the_first_sentence_says_whether_a_chain_got_worse(chains: dict[str, Any], said: str) -> None:
    found = [rows(name, totals, is_later=n == 1) for name, both in chains.items() for n, totals in enumerate(both)]
    assert Week(DAY, list(weeks(*found).values())).in_words == said


def test_the_chains_that_fell_are_those_that_got_worse_or_else_the_largest_fall() -> None:
    lower = {points: [total - points for total in STEADY] for points in (20, 30)}
    quiet = [*pair("a", SAME, [45, 55, 65, 50, 60]), *pair("b", SAME, [48, 58, 68, 53, 63])]
    worse = [*pair("c", STEADY, lower[20]), *pair("d", STEADY, lower[30])]

    assert [c.chain_id for c in Week(DAY, list(weeks(*quiet).values())).fallen] == ["a"]
    assert [c.chain_id for c in Week(DAY, list(weeks(*quiet, *worse).values())).fallen] == ["d", "c"]


def test_the_first_sentence_counts_chains_that_cannot_be_compared() -> None:
    other = [rows("o", SAME, is_later=False), rows("o", SAME, is_later=True, judge="judge-2")]
    assert Week(DAY, list(weeks(*other).values())).in_words.startswith("No chain can be compared")
    both = Week(DAY, list(weeks(*other, *pair("k", SAME, SAME)).values())).in_words
    assert both == (
        "No chain got worse: no mean total fell. 1 more cannot be compared: no judge has totals in both weeks."
    )


def test_only_chains_that_are_held_up_wait_for_a_person() -> None:
    class Holds:
        def hold(self, chain_id: str | None) -> tuple[str, str] | None:
            return ("pause", "paused by ada") if chain_id == "k" else None

    waiting = {"k": 3, None: 2}
    assert held_up(waiting, Holds()) == [Held("k", 3, "pause", "paused by ada")]
    assert held_up(waiting, None) == []
