"""The cost of an investigation is known only where every execution has one price and known tokens."""

import pytest

from tarsy_scoring.evaluation.agent_cost import agent_cost_usd
from unit.timeline.sessions import execution, stage, timeline

TOKENS = {"input_tokens": 1_000_000, "output_tokens": 100_000}
GPT_USD = 2.8  # gpt-4.1 at published prices: 2 and 8 per million


@pytest.mark.parametrize(
    ("agents", "usd"),
    [
        pytest.param([{"model_names": ("gpt-4.1", "a-provider"), **TOKENS}], GPT_USD, id="one price"),
        pytest.param([{"model_names": (name,), **TOKENS} for name in ("gpt-4.1", "GPT-4.1")], 2 * GPT_USD, id="sum"),
        pytest.param([{"model_names": (name,), **TOKENS} for name in ("gpt-4.1", "own")], None, id="no price"),
        pytest.param([{"model_names": ("gpt-4.1", "claude-sonnet-4-5"), **TOKENS}], None, id="two prices"),
        pytest.param([{"model_names": ("gpt-4.1",), "input_tokens": 5}], None, id="unknown tokens"),
        pytest.param([], None, id="no execution"),
    ],
)
def test_each_execution_has_its_price(agents: list[dict[str, object]], usd: float | None) -> None:
    """Stages that the judge does not see cost nothing."""
    shown = stage(*(execution(name=str(n), **fields) for n, fields in enumerate(agents)))
    scoring = stage(execution(model_names=("gpt-4.1",), **TOKENS), stage_type="scoring")
    assert agent_cost_usd(timeline(shown, scoring)) == usd
