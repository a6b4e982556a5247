"""How many tokens of a judge model's window are left for the session."""

from tarsy_scoring.config.chains import ProviderSettings
from tarsy_scoring.errors import PromptTooLong
from tarsy_scoring.judge.criteria import Criteria

# A provider whose tokenizer counts more than the estimate refuses the prompt. Each refusal takes off a
# quarter.
OVERFLOW_STEP = 0.75
# Room for repeated reminders and the message envelope, which no prompt counts.
OVERHEAD_TOKENS = 600


def context_budget(
    provider: ProviderSettings, criteria: Criteria, factor: float = 1.0, window_tokens: int | None = None
) -> int:
    """
    Room for alert and conversation, in estimated tokens.

    That is the window less the prompts, two answers and some overhead. The second turn reads the first
    answer, and an answer that was cut is asked for again at greater length.

    Args:
        factor: Real tokens per estimated token.
        window_tokens: The window that the endpoint reported, where it is smaller than the configured one.
    """
    window = min(provider.context_window_tokens, window_tokens or provider.context_window_tokens)
    room = (window - 2 * provider.max_reply_tokens) / factor
    return max(0, int(room) - criteria.prompt_tokens - OVERHEAD_TOKENS)


def smaller_budget(
    budget: int, context_tokens: int, error: PromptTooLong, provider: ProviderSettings, criteria: Criteria
) -> int:
    """The budget after a refusal: what the endpoint's numbers leave, at least a quarter less than before."""
    step = int(min(budget, context_tokens) * OVERFLOW_STEP)
    if error.window_tokens is None and error.prompt_tokens is None:
        return step
    factor = max(1.0, (error.prompt_tokens or 0) / (context_tokens + criteria.opening_tokens))
    left = context_budget(provider, criteria, factor, error.window_tokens)
    return min(step, left) if left > 0 else step  # the reserve for answers may be larger than the answers
