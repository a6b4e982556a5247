"""The cost of an investigation is known only where every execution has one price and known tokens."""

import pytest

from tarsy_scoring.config.chains import AgentPrices
from tarsy_scoring.evaluation.agent_cost import agent_cost_usd
from unit.timeline.sessions import execution, stage, timeline

PRICES = {"Model-A": AgentPrices(input=1, output=10), "model-b": AgentPrices(input=2, output=20)}
KNOWN = {"input_tokens": 1_000_000, "output_tokens": 100_000}


@pytest.mark.parametrize(
    ("agents", "usd"),
    [
        pytest.param([{"model_names": ("model-a", "provider"), **KNOWN}], 2.0, id="one price"),
        pytest.param([{"model_names": ("model-a",), **KNOWN}, {"model_names": ("MODEL-B",), **KNOWN}], 6.0, id="sum"),
        pytest.param(
            [{"model_names": ("model-a",), **KNOWN}, {"model_names": ("other",), **KNOWN}], None, id="no price"
        ),
        pytest.param([{"model_names": ("model-a", "model-b"), **KNOWN}], None, id="two prices"),
        pytest.param([{"model_names": ("model-a",), "input_tokens": 5}], None, id="unknown tokens"),
        pytest.param([], None, id="no execution"),
    ],
)
def test_each_execution_has_its_price(agents: list[dict[str, object]], usd: float | None) -> None:
    """Stages that the judge does not see cost nothing."""
    shown = stage(*(execution(name=str(n), **fields) for n, fields in enumerate(agents)))
    scoring = stage(execution(model_names=("model-b",), **KNOWN), stage_type="scoring")
    assert agent_cost_usd(timeline(shown, scoring), PRICES) == usd


def test_without_prices_there_is_no_cost() -> None:
    assert agent_cost_usd(timeline(stage(execution(model_names=("model-a",), **KNOWN))), {}) is None
