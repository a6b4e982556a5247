"""The week of a chain: what is compared, and which differences are clear."""

from dataclasses import asdict
from typing import Any

import pytest

from tables import table
from tarsy_scoring.analytics.chain_averages import Sums
from tarsy_scoring.analytics.week import ChainWeek, compare_weeks
from tarsy_scoring.web.pages.week import held_up


def row(chain: str, totals: list[int], *, is_later: bool, judge: str = "judge-1") -> dict[str, Any]:
    """A row of `WEEKS`."""
    sums = Sums(len(totals), totals=len(totals), points=sum(totals), squares=sum(t * t for t in totals))
    return {"chain_id": chain, "judge_fingerprint": judge, "is_later": is_later} | asdict(sums)


def pair(chain: str, before: list[int], now: list[int]) -> list[dict[str, Any]]:
    return [row(chain, before, is_later=False), row(chain, now, is_later=True)]


def compared(*rows: dict[str, Any]) -> dict[str | None, ChainWeek]:
    return {chain.chain_id: chain for chain in compare_weeks(rows)}


SAME = [50, 60, 70, 55, 65]


@pytest.mark.parametrize(("others", "is_clear"), [(0, True), (19, False)], ids=["alone", "among-twenty"])
def test_a_difference_is_judged_among_all_chains(others: int, is_clear: bool) -> None:
    quiet = [one for n in range(others) for one in pair(f"quiet-{n}", SAME, SAME)]
    found = compared(*pair("k", SAME, [61, 71, 81, 66, 76]), *quiet)["k"]
    assert found.difference == 11
    assert found.is_clear is is_clear


def test_totals_are_compared_under_the_judge_with_most_of_them_in_both_weeks() -> None:
    """The mean of all judges may differ for their scales alone."""
    found = compared(
        *pair("k", SAME, SAME),
        *[row("k", [90], is_later=later, judge="rare") for later in (False, True)],
        row("k", [90] * 50, is_later=True, judge="milder"),
    )["k"]
    assert (found.difference, found.now.scores, found.now.mean) == (0, 56, (300 + 90 * 51) / 56)


@table
def test_too_few_totals_have_no_interval(before: list[int], now: list[int], difference: float | None) -> None:
    found = compared(*pair("k", before, now))["k"]
    assert (found.difference, found.reach, found.is_clear) == (difference, None, False)


def test_equal_totals_have_an_interval_without_width() -> None:
    found = compared(*pair("k", [60] * 3, [61] * 3))["k"]
    assert (found.difference, found.reach, found.is_clear) == (1, 0, True)


def test_only_chains_that_are_held_up_wait_for_a_person() -> None:
    class Holds:
        def hold(self, chain_id: str | None) -> tuple[str, str] | None:
            return ("pause", "paused by ada") if chain_id == "k" else None

    waiting = {"k": 3, None: 2}
    assert held_up(waiting, Holds()) == [("k", 3, "pause", "paused by ada")]
