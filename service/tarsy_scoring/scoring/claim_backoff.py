"""Decides which notifications of new scores make an idle worker claim, so that not every worker does."""

import random
from dataclasses import dataclass

LEAST_SHARE = 1 / 256


@dataclass(slots=True)
class ClaimBackoff:
    """
    The share of announced scores for which a worker claims; learnt from what its claims find.

    If every idle worker claimed whenever another process announces a score, all claims but one would find
    nothing. A claim that finds nothing halves the share, and one that finds a score doubles it. So a fleet
    settles at about two claims per score, whatever its size, and a worker that is alone claims for every
    score. A score for which no worker claims is found by the next poll, and the worker that polled claims for
    every score again.
    """

    share: float = 1.0
    _has_reacted: bool = False

    def reacts(self, announced: int) -> bool:
        """Decide whether to claim now that another process has announced so many scores."""
        reacts = random.random() < self.share * announced  # noqa: S311 - no secret
        self._has_reacted |= reacts
        return reacts

    def starts_claim(self) -> bool:
        """Whether an announcement led to the claim that starts now, for `learn`."""
        has_reacted, self._has_reacted = self._has_reacted, False
        return has_reacted

    def learn(self, has_reacted: bool, claimed: int) -> None:
        """Adapt the share to what a claim found."""
        if claimed:
            self.share = min(2 * self.share, 1.0) if has_reacted else 1.0
        elif has_reacted:
            self.share = max(self.share / 2, LEAST_SHARE)
