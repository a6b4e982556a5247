"""Bands: named ranges of totals, declared by criteria, with the word and the colour that say them to people."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

# Totals with these flags have no outcome, contradict the outcome that the judge stated, may be manipulated, or are
# about a small part of the session.
DOUBTFUL_FLAGS = frozenset(
    {"outcome_missing", "outcome_score_mismatch", "tampering_suspected", "mostly_unseen"}
)

Tone = Literal["weak", "fair", "good", "plain"]
"""A colour, by its CSS class. The word or the number beside it says the same."""


@dataclass(frozen=True, slots=True)
class Band:
    """A named range of totals; both ends are inclusive."""

    id: str
    low: int
    high: int


# For criteria without bands, and for criteria that are not configured here.
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


def show_band(total: float, bands: Sequence[Band], stated: str | None = None) -> tuple[str, Tone]:
    """
    The word and the colour of a total: weak in the lowest band, good in the highest, fair between them.

    Args:
        stated: The outcome that the judge stated, which comes before the band that contains the total.
    """
    ids: list[str | None] = [b.id for b in bands]
    band = stated or band_of(total, bands)
    tones: dict[str | None, Tone] = {**dict.fromkeys(ids, "fair"), ids[0]: "weak", ids[-1]: "good"}
    return (band or "between bands").replace("_", " "), tones.get(band, "plain")
