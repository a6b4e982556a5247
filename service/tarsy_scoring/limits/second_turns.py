"""
Learns what second turns cost, so that they do not reserve a whole window of a budget.

`fleet` stores the shares of a provider with its state, for all processes.
"""

import math
from dataclasses import replace

from tarsy_scoring.limits.rules import Call, ProviderState, Result

KEPT, LEARNED_FROM = 20, 5  # turns of a model: how many are kept, and from how many on they count


def reservation_usd(call: Call, state: ProviderState | None, model: str) -> float | None:
    """
    USD that a call reserves: its upper bound, or for a second turn what such turns of the model have used.

    That is the highest share of the last `KEPT` ones: the next one costs more once in 21 times. The budget
    is then overdrawn by the difference, because the cost itself is always charged.

    Args:
        model: The model configured now.
    """
    if call.most_usd is None or not call.is_second_turn or state is None or not is_learned(state, model):
        return call.most_usd
    return call.most_usd * min(1.0, max(state.second_turn_shares))


def is_learned(state: ProviderState, model: str) -> bool:
    """Whether enough second turns of the configured model are known."""
    return state.second_turn_model == model and len(state.second_turn_shares) >= LEARNED_FROM


def second_turn_share(call: Call, result: Result) -> float | None:
    """
    Cost of an answered second turn as a share of its upper bound, rounded up; None if it teaches nothing.
    """
    if not (call.is_second_turn and call.most_usd and result.cost_usd and result.read_tokens):
        return None
    return math.ceil(1000 * result.cost_usd / call.most_usd) / 1000


def with_share(state: ProviderState, model: str, share: float) -> ProviderState:
    """The state after one more second turn of the configured model; another model starts over."""
    known = state.second_turn_shares if state.second_turn_model == model else ()
    return replace(state, second_turn_model=model, second_turn_shares=(*known, share)[-KEPT:])
