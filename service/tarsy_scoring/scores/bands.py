"""Bands: named ranges of totals, declared by criteria."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Totals with these flags have no outcome, contradict the outcome that the judge stated, or may be manipulated.
DOUBTFUL_FLAGS = frozenset({"outcome_missing", "outcome_score_mismatch", "tampering_suspected"})


@dataclass(frozen=True, slots=True)
class Band:
    """A named range of totals; both ends are inclusive."""

    id: str
    low: int
    high: int


# For criteria without bands: the edges 50 and 75, as used by the badges.
DEFAULT_BANDS = (Band("0-49", 0, 49), Band("50-74", 50, 74), Band("75-100", 75, 100))


def bands_of(ranges: Mapping[str, Sequence[int]] | None) -> tuple[Band, ...]:
    """The bands of a criteria (`{id: (low, high)}`), lowest first; `DEFAULT_BANDS` without any."""
    bands = (Band(name, low, high) for name, (low, high) in (ranges or {}).items())
    return tuple(sorted(bands, key=lambda b: b.low)) or DEFAULT_BANDS


def band_of(total: float, bands: Sequence[Band]) -> str | None:
    """
    Id of the band that contains a total, rounded half up to a whole number; None between two bands.

    Rounding is needed because bands have whole edges: 49.5 must not fall between 49 and 50.
    """
    whole = math.floor(total + 0.5)
    return next((b.id for b in bands if b.low <= whole <= b.high), None)
