"""The cost of an investigation: the agents' tokens at the prices that the operator configured."""

from collections.abc import Mapping

from tarsy_scoring.config.chains import AgentPrices
from tarsy_scoring.timeline.model import Execution, Timeline

USD_DIGITS = 6  # decimal places; a sum of floats has digits that no price has


def agent_cost_usd(timeline: Timeline, prices: Mapping[str, AgentPrices]) -> float | None:
    """
    Sum up the cost of all shown executions; None unless each has a price and known tokens.

    A timeline does not say how many input tokens came from a cache, so all are charged in full.

    Args:
        prices: By model name; case is ignored. An execution records several names, of models and their
            providers. It has a price if exactly one of them does.
    """
    known = {name.lower(): price for name, price in prices.items()}
    costs = [_cost_usd(e, known) for stage in timeline.shown_stages for e in stage.executions]
    if not known or not costs or None in costs:
        return None
    return round(sum(cost for cost in costs if cost is not None), USD_DIGITS)


def _cost_usd(execution: Execution, prices: Mapping[str, AgentPrices]) -> float | None:
    names = {name.lower() for name in execution.model_names} & prices.keys()
    if len(names) != 1 or execution.input_tokens is None or execution.output_tokens is None:
        return None
    price = prices[names.pop()]
    return (execution.input_tokens * price.input + execution.output_tokens * price.output) / 1e6
