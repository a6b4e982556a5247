"""The cost of a call: from configured prices, from published prices, or unknown."""

from typing import Any

import pytest

from tables import table
from tarsy_scoring.config.chains import ProviderSettings
from tarsy_scoring.judge.ask.prices import Prices


def prices(**settings: Any) -> Prices:
    return Prices(ProviderSettings.model_validate({"base_url": "https://judge.example/v1", "model": "own"} | settings))


def configured(**per_million: float | None) -> Prices:
    return prices(prices_usd_per_million_tokens=per_million)


def test_cost_follows_prices_and_token_counts() -> None:
    priced, free = configured(input=1, cached_input=0.1, output=10), configured(input=0, cached_input=0, output=0)
    for known, tokens, cost in (
        (priced, (1000, 600, 200), 0.00246),
        (configured(input=1, cached_input=None, output=10), (1000, 600, 200), 0.003),
        (priced, (1000, None, 200), 0.003),
        (configured(input=1, cached_input=0, output=0), (100, 900, 1), 0),
        (free, (1000, 0, 200), 0),
        (prices(), (1000, 0, 200), None),
        (priced, (None, 0, 200), None),
        (priced, (1000, 0, None), None),
    ):
        assert known.cost_usd(*tokens) == (cost if cost is None else pytest.approx(cost)), tokens


def test_a_public_model_has_its_published_price() -> None:
    public = {"base_url": "https://api.openai.com/v1", "model": "gpt-4.1"}
    published = prices(**public)

    assert published.are_known
    whole, cached = published.cost_usd(1_000_000, 0, 0), published.cost_usd(1_000_000, 1_000_000, 0)
    assert whole is not None
    assert cached is not None
    assert 0 < cached < whole
    assert prices(**public, prices_usd_per_million_tokens={"input": 7, "output": 7}).cost_usd(10**6, 0, 0) == 7


@table
def test_price_of_a_public_model_at_another_address_is_unknown(base_url: str) -> None:
    assert not prices(base_url=base_url, model="gpt-4.1").are_known
