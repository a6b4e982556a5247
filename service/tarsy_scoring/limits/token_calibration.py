"""
Learns how many tokens a model counts per estimated token, from the usage that calls report.

`fleet` stores the factor for all processes.
"""

import math
from dataclasses import dataclass, field

MOST, STEPS = 4.0, 20  # steps are 0.05, so that contexts stay reproducible
LEARNED_FROM_TOKENS = 1_000  # in a smaller prompt the tokens that a provider adds weigh too much
REPORTS_TO_FALL = 20


@dataclass(slots=True)
class FactorReports:
    """
    Usage reports about one model, seen by this process.

    The factor rises at once to a single report's value, rounded up to a step, because a prompt that is
    too long wastes a call. It falls only after 20 lower reports in a row, to the highest of them. An absurd
    report is therefore forgotten, and small fluctuations change nothing.
    """

    lower: list[float] = field(default_factory=list)

    def factor_after(self, factor: float, estimated_tokens: int, read_tokens: int) -> float:
        """
        Return the factor after one more report, between 1 and 4.

        Args:
            factor: The factor now in force for the fleet.
            estimated_tokens, read_tokens: Prompt tokens as estimated here and as reported by the provider.
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
