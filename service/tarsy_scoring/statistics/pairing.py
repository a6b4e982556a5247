"""Which values of two groups are alike enough to be compared with each other. Pure."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from tarsy_scoring.statistics.bootstrap import FEWEST_FOR_AN_INTERVAL, FEWEST_IN_A_STRATUM, Stratum

Fingerprint = str | None


@dataclass(frozen=True, slots=True)
class Value:
    """
    A number of a session.

    Args:
        judge: Who gave it; None where nobody is known to have.
        circumstances: What else makes sessions alike, such as chain and alert type.
    """

    number: float
    judge: Fingerprint
    circumstances: Hashable


@dataclass(frozen=True, slots=True)
class Pairing:
    """
    Two groups in strata of alike values.

    Args:
        alike: The values of the first and of the second group, stratum by stratum.
        is_fine: The strata are those of circumstances, and hold enough for a verdict. Without it circumstances are
            joined, and a difference may be all theirs.
        left_out: Strata of circumstances with too few of one group; without a verdict all of them.
    """

    alike: Sequence[tuple[Sequence[Value], Sequence[Value]]]
    is_fine: bool
    left_out: int

    @property
    def compared(self) -> tuple[int, int]:
        """How many of each group a verdict rests on."""
        return self.sizes if self.is_fine else (0, 0)

    @property
    def sizes(self) -> tuple[int, int]:
        """How many of each group are in strata."""
        return sum(len(first) for first, _ in self.alike), sum(len(second) for _, second in self.alike)

    def strata(self, number: Callable[[Value], float] = lambda value: value.number) -> list[Stratum]:
        """The numbers, or what is made of each value."""
        return [Stratum(list(map(number, first)), list(map(number, second))) for first, second in self.alike]


def pair_values(
    first: Sequence[Value], second: Sequence[Value], scale: Callable[[Fingerprint], Hashable] = lambda judge: judge
) -> Pairing:
    """
    Put values into strata of like circumstances; where too few are left, join circumstances, and nothing is shown.

    Args:
        scale: Only values on the same scale are alike; by default every judge has one of its own.
    """
    fine = _pair(first, second, lambda v: (scale(v.judge), v.circumstances), FEWEST_IN_A_STRATUM, is_fine=True)
    if min(fine.sizes) >= FEWEST_FOR_AN_INTERVAL:
        return fine
    joined = _pair(first, second, lambda v: scale(v.judge), 1, is_fine=False)
    return replace(joined, left_out=fine.left_out + len(fine.alike))


def _pair(
    first: Sequence[Value], second: Sequence[Value], kind: Callable[[Value], Hashable], fewest: int, *, is_fine: bool
) -> Pairing:
    groups = defaultdict[Hashable, tuple[list[Value], list[Value]]](lambda: ([], []))
    for side, values in enumerate((first, second)):
        for value in values:
            groups[kind(value)][side].append(value)
    alike = [sides for sides in groups.values() if min(map(len, sides)) >= fewest]
    return Pairing(alike, is_fine, len(groups) - len(alike))
