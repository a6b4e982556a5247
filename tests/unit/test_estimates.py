"""Estimates of tokens and cost for a selection, from earlier scores; an unknown amount is never invented."""

import pytest

from tarsy_scoring.queue.selection import Amount, ScoreUsage, add_up

KNOWN, AVERAGE = ScoreUsage(1000, 0.02), ScoreUsage(3000, 0.04)


def test_own_scores_precede_the_average_of_the_chain() -> None:
    chains = {"a": "kubernetes", "b": "kubernetes", "c": "billing", "d": None}

    estimate = add_up(chains, {"a": KNOWN}, {"kubernetes": AVERAGE})

    assert estimate.tokens == Amount(4000, 1, 1, 2)
    assert estimate.cost_usd == Amount(pytest.approx(0.06), 1, 1, 2)
    assert (estimate.sessions, estimate.chains) == (4, {"kubernetes": 2, "billing": 1, None: 1})


@pytest.mark.parametrize(
    ("own", "average", "cost"),
    [
        pytest.param(ScoreUsage(1000, None), None, Amount(None, 0, 0, 1), id="prices-unknown"),
        pytest.param(ScoreUsage(1000, None), ScoreUsage(9, 0.04), Amount(0.04, 0, 1, 0), id="prices-known-by-now"),
        pytest.param(ScoreUsage(1000, 0.0), ScoreUsage(9, 0.04), Amount(0.0, 1, 0, 0), id="free-of-charge"),
    ],
)
def test_tokens_and_cost_are_estimated_separately(own: ScoreUsage, average: ScoreUsage | None, cost: Amount) -> None:
    estimate = add_up({"a": "kubernetes"}, {"a": own}, {"kubernetes": average} if average else {})

    assert estimate.tokens == Amount(1000, 1, 0, 0)
    assert estimate.cost_usd == cost
