"""The cost of an investigation: the agents' tokens at published prices."""

from genai_prices import Usage, calc_price

from tarsy_scoring.timeline.model import Execution, Timeline, sum_if_known

USD_DIGITS = 6  # decimal places; a sum of floats has digits that no price has


def agent_cost_usd(timeline: Timeline) -> float | None:
    """
    Sum up the cost of all shown executions; None unless each has a published price and known tokens.

    A timeline does not say how many input tokens came from a cache, so all are charged in full. An execution
    records several names, of models and their providers. It has a price if exactly one of them does.
    """
    cost_usd = sum_if_known(map(_cost_usd, timeline.shown_executions))
    return None if cost_usd is None else round(cost_usd, USD_DIGITS)


def _cost_usd(execution: Execution) -> float | None:
    if execution.input_tokens is None or execution.output_tokens is None:
        return None
    usage = Usage(input_tokens=execution.input_tokens, output_tokens=execution.output_tokens)
    costs = [published_usd(usage, name) for name in {name.lower() for name in execution.model_names}]
    known = [cost for cost in costs if cost is not None]
    return known[0] if len(known) == 1 else None


def published_usd(usage: Usage, model: str, api_url: str | None = None) -> float | None:
    """
    The published price of the tokens; None where the model is unknown.

    Args:
        api_url: Base URL of the provider; None: the provider whose models are called so.
    """
    try:
        return float(calc_price(usage, model, provider_api_url=api_url).total_price)
    except (LookupError, ValueError):
        return None
