"""
How many tokens a model really counts for each that we estimate: decided from what its calls report.

Pure. `limits.py` keeps the factor for the fleet.
"""

import math
from dataclasses import dataclass, field

MOST, STEPS = 4.0, 20  # steps of 0.05, so that contexts stay the same
LEARNED_FROM_TOKENS = 1_000  # in a small prompt, what a provider adds to it weighs too much
REPORTS_TO_FALL = 20


@dataclass(slots=True)
class FactorReports:
    """
    What calls of one model reported, as far as one process knows.

    The factor rises at once to what a single call reports, rounded up to a step: a prompt that is too long is
    a call for nothing. It falls slowly: after 20 reports in a row that were all lower, to the highest of these.
    So one absurd report is forgotten, and in between nothing moves.
    """

    lower: list[float] = field(default_factory=list)

    def factor_after(self, factor: float, estimated_tokens: int, read_tokens: int) -> float:
        """
        The factor after one more report, 1-4.

        Args:
            factor: As it holds now for the whole fleet.
            estimated_tokens, read_tokens: Of the prompt: as we count them, and as the provider reports them.
        """
        if estimated_tokens < LEARNED_FROM_TOKENS:
            return factor
        exact = min(max(read_tokens / estimated_tokens, 1.0), MOST)
        reported = math.ceil(round(exact * STEPS, 6)) / STEPS
        if reported >= factor:
            self.lower = []
            return reported
        self.lower.append(reported)
        if len(self.lower) < REPORTS_TO_FALL:
            return factor
        highest, self.lower = max(self.lower), []
        return highest
