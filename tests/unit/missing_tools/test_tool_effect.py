"""When the demand for a tool counts as gone, as unchanged or as undecided."""

import itertools
import math

import pytest
from scipy import stats

from tables import table
from tarsy_scoring.missing_tools.tool_effect import FEWEST_SESSIONS, ChainDemand, measure_demand


@table
def test_verdict_follows_the_demand_with_and_without_the_tool(chains: list[list[int]], verdict: str) -> None:
    assert measure_demand([ChainDemand(*chain) for chain in chains]).verdict == verdict


def test_verdicts_equal_those_of_the_exact_binomial_test() -> None:
    for before, sessions in itertools.product((3, 40, 150), (50, 800)):
        exposure = sessions / 1000
        confirming, missing = (share * exposure / (1 + share * exposure) for share in (1 / 4, 1 / 2))
        for after in range(int(before * exposure) + 2):
            trials = before + after
            expected = "undecided"
            if stats.binomtest(after, trials, confirming, "less").pvalue <= 0.05:
                expected = "confirmed"
            elif stats.binomtest(after, trials, missing, "greater").pvalue <= 0.05:
                expected = "still_missed"
            assert measure_demand([ChainDemand(1000, before, sessions, after)]).verdict == expected


def test_a_chain_that_always_asked_less_is_no_success() -> None:
    """Only the chain that hardly asked got the tool; pooled over both chains, demand would seem to fall."""
    busy, quiet = ChainDemand(100, 50, 0, 0), ChainDemand(100, 5, 100, 5)

    found = measure_demand([busy, quiet])

    assert found.verdict == "undecided"
    assert (found.sessions_without, found.asked_without) == (100, 5)
    assert found.left == 1


def test_expected_demand_of_each_chain_is_its_earlier_demand() -> None:
    found = measure_demand([ChainDemand(100, 50, 10, 5), ChainDemand(100, 5, 200, 10)])

    assert found.expected == pytest.approx(15)
    assert found.left == pytest.approx(1)
    assert found.verdict == "still_missed"


def test_the_sessions_needed_are_those_at_which_the_verdict_changes() -> None:
    for sessions, asked, seen, after in ((100, 10, 20, 0), (100, 30, 30, 4), (900, 12, 30, 1), (2000, 900, 20, 0)):
        needed = measure_demand([ChainDemand(sessions, asked, seen, after)]).sessions_needed
        assert needed
        found = [measure_demand([ChainDemand(sessions, asked, seen + n, after)]) for n in (needed - 1, needed)]
        assert [d.verdict for d in found] == ["undecided", "confirmed"]
        assert (found[0].sessions_needed, found[1].sessions_needed) == (1, None)
    for asked in (2, 3, 10, 30):
        needed = measure_demand([ChainDemand(100, asked, 1, 0)]).sessions_needed
        assert needed == max(FEWEST_SESSIONS, math.ceil(400 * (0.05 ** (-1 / asked) - 1))) - 1
    assert measure_demand([ChainDemand(100, 0, 1, 0)]).sessions_needed is None
