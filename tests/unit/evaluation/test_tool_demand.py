"""When a tool that was built counts as what was missed, and when judges still miss it."""

import math
import random
from bisect import bisect_left
from fractions import Fraction

import pytest

from tarsy_scoring.missing_tools.tool_effect import (
    FEWEST_SESSIONS,
    ChainDemand,
    measure_demand,
    sessions_until_confirmed,
)


@pytest.mark.parametrize(
    ("chains", "verdict"),
    [
        pytest.param([(100, 30, 60, 0)], "confirmed", id="nobody-asks-any-more"),
        pytest.param([(100, 30, 200, 2)], "confirmed", id="hardly-anybody"),
        pytest.param([(100, 30, 60, 18)], "still_missed", id="as-before"),
        pytest.param([(100, 30, 60, 40)], "still_missed", id="more-than-before"),
        pytest.param([(100, 30, 60, 6)], "undecided", id="a-third"),
        pytest.param([(100, 30, 19, 19)], "undecided", id="too-few-sessions"),
        pytest.param([(100, 2, 60, 0)], "undecided", id="rarely-asked-before"),
        pytest.param([(100, 0, 60, 6)], "undecided", id="never-asked-before"),
        pytest.param([(0, 0, 60, 6)], "undecided", id="always-there"),
        pytest.param([(100, 30, 0, 0)], "undecided", id="never-there"),
        pytest.param([], "undecided", id="nothing"),
        pytest.param([(10_000, 3_000, 6_000, 20)], "confirmed", id="many-and-hardly-anybody"),
        pytest.param([(10_000, 3_000, 6_000, 1_700)], "still_missed", id="many-as-before"),
    ],
)
def test_verdicts(chains: list[tuple[int, int, int, int]], verdict: str) -> None:
    assert measure_demand([ChainDemand(*c) for c in chains]).verdict == verdict


def tail(least: int, most: int, trials: int, chance: Fraction) -> float:
    """The exact chance of a number of successes between these."""
    one, other = chance.numerator, chance.denominator - chance.numerator
    ways = sum(math.comb(trials, k) * one**k * other ** (trials - k) for k in range(least, most + 1))
    return float(Fraction(ways, chance.denominator**trials))


@pytest.mark.parametrize("before", [3, 12, 40, 150])
@pytest.mark.parametrize("sessions", [50, 200, 800])
def test_verdicts_are_those_of_the_exact_test(before: int, sessions: int) -> None:
    """For every number of demands around both borders, with 1,000 sessions before."""
    exposure = Fraction(sessions, 1000)
    confirming, missing = (share * exposure / (1 + share * exposure) for share in (Fraction(1, 4), Fraction(1, 2)))
    expected = before * exposure
    for after in range(int(expected) + 2):
        trials = before + after
        exact = "undecided"
        if tail(0, after, trials, confirming) <= 0.05:
            exact = "confirmed"
        elif tail(after, trials, trials, missing) <= 0.05:
            exact = "still_missed"

        assert measure_demand([ChainDemand(1000, before, sessions, after)]).verdict == exact, after


def test_many_demands_are_no_other_matter() -> None:
    """Where the normal curve stands in for the sum, it changes over within two demands of the exact border."""
    chance = Fraction(1, 3)  # half of the rate, as many sessions
    border = bisect_left(range(1400), True, key=lambda k: tail(k, 2000 + k, 2000 + k, chance) <= 0.05)

    found = [measure_demand([ChainDemand(9000, 2000, 9000, border + n)]).verdict for n in (-3, 3)]

    assert found == ["undecided", "still_missed"]


def test_a_chain_that_always_asked_less_is_no_success() -> None:
    """The tool went to the chain that hardly asked; pooled over both chains the rate would seem to fall."""
    busy, quiet = ChainDemand(100, 50, 0, 0), ChainDemand(100, 5, 100, 5)

    found = measure_demand([busy, quiet])

    assert found.verdict == "undecided"
    assert (found.sessions_without, found.asked_without) == (100, 5)
    assert found.left == 1


def test_chains_are_expected_to_ask_as_they_did() -> None:
    """Most sessions with the tool are of the chain that asks little, and are held against that one."""
    found = measure_demand([ChainDemand(100, 50, 10, 5), ChainDemand(100, 5, 200, 10)])

    assert found.expected == pytest.approx(15)
    assert found.left == pytest.approx(1)
    assert found.verdict == "still_missed"


@pytest.mark.parametrize(("sessions", "asked"), [(100, 1), (100, 10), (100, 30), (40, 40), (900, 12), (2000, 900)])
def test_so_many_quiet_sessions_confirm_and_one_fewer_do_not(sessions: int, asked: int) -> None:
    """The number that people are told is the one at which the verdict changes."""
    needed = sessions_until_confirmed(sessions, asked)

    assert needed is not None
    assert measure_demand([ChainDemand(sessions, asked, needed, 0)]).verdict == "confirmed"
    if needed > FEWEST_SESSIONS:
        assert measure_demand([ChainDemand(sessions, asked, needed - 1, 0)]).verdict == "undecided"


def test_the_rate_before_decides_how_long_to_wait() -> None:
    """By the formula where nobody asks: the chance of silence at a quarter of the rate is 5 %."""
    waits = [sessions_until_confirmed(100, asked) for asked in (2, 3, 10, 30)]

    assert waits == [math.ceil(400 * (0.05 ** (-1 / asked) - 1)) for asked in (2, 3, 10, 30)]
    assert sessions_until_confirmed(100, 0) is None


@pytest.mark.parametrize("after", [0, 1, 4])
def test_what_is_still_needed_is_enough(after: int) -> None:
    """As many more sessions, and none of them asks."""
    found = measure_demand([ChainDemand(100, 20, 30, after)])

    assert found.sessions_needed
    more = measure_demand([ChainDemand(100, 20, 30 + found.sessions_needed, after)])
    assert more.verdict == "confirmed"
    assert more.sessions_needed is None


def verdicts_of(left: float, runs: int) -> dict[str, float]:
    """How often each verdict was ever given in 400 sessions, looked at after each fifth."""
    draw = random.Random(8)
    ever = {"confirmed": 0, "still_missed": 0, "undecided": 0}
    for _ in range(runs):
        rate = draw.choice((0.05, 0.1, 0.3))
        before = sum(draw.random() < rate for _ in range(100))
        after, seen = 0, set()
        for sessions in range(1, 401):
            after += draw.random() < rate * left
            if sessions % 5 == 0:
                seen.add(measure_demand([ChainDemand(100, before, sessions, after)]).verdict)
        for verdict in seen:
            ever[verdict] += 1
    return {verdict: count / runs for verdict, count in ever.items()}


def test_a_tool_that_changed_nothing_is_not_confirmed() -> None:
    """However often somebody looks; and in most runs it is told that it is still missed."""
    found = verdicts_of(1.0, 200)

    assert found["confirmed"] <= 0.05
    assert found["still_missed"] >= 0.7


def test_a_tool_that_helped_is_not_called_missed() -> None:
    """A twentieth of the demand is left, as judges err; most are confirmed within 400 sessions."""
    found = verdicts_of(0.05, 200)

    assert found["still_missed"] <= 0.05
    assert found["confirmed"] >= 0.7
