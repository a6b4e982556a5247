"""Strata: groups of sessions that are comparable because they share a judge, a chain and an alert type."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

# With fewer values the intervals undercover. Source: our simulations without a difference (1,000 seeds;
# normal, lognormal, 0/1 and rates): from 5 against 5 on, 95 % intervals miss 0 in 1-6 % of cases. With groups
# of very unequal size (8:1) and skewed values they miss it in up to 16 %, which is why a verdict also
# requires a permutation test.
FEWEST_FOR_AN_INTERVAL = 5
FEWEST_IN_A_STRATUM = 2  # per group: a single value has no variance

Fingerprint = str | None


@dataclass(frozen=True, slots=True)
class Stratum:
    """The values of two groups under the same circumstances; each group has at least one."""

    first: Sequence[float]
    second: Sequence[float]

    @property
    def weight(self) -> float:
        """
        n1 * n2 / (n1 + n2), which minimises the variance of the estimate when all strata vary alike.

        Source:
            W. G. Cochran: Some methods for strengthening the common chi-square tests. Biometrics 10 (1954),
                417-451.
        """
        return len(self.first) * len(self.second) / (len(self.first) + len(self.second))


def shared_strata(
    first: Mapping[Hashable, Sequence[float]],
    second: Mapping[Hashable, Sequence[float]],
    *,
    fewest: int = FEWEST_IN_A_STRATUM,
) -> list[Stratum]:
    """
    Keep the strata in which both groups have at least `fewest` values.

    Args:
        first, second: Values by stratum.
        fewest: Below `FEWEST_IN_A_STRATUM` the result carries no interval.
    """
    return [Stratum(first[s], second[s]) for s in first if min(len(first[s]), len(second.get(s, ()))) >= fewest]


@dataclass(frozen=True, slots=True)
class Value:
    """
    A number of a session.

    Args:
        judge: Fingerprint of the judge that gave it; None when it is unknown or no judge was involved.
        circumstances: What else makes sessions comparable, such as chain and alert type.
    """

    number: float
    judge: Fingerprint
    circumstances: Hashable


@dataclass(frozen=True, slots=True)
class Pairing:
    """
    Two groups, sorted into strata.

    Args:
        alike: The values of the first and of the second group, stratum by stratum.
        is_fine: The strata separate circumstances and hold enough values for a verdict. When False,
            circumstances were pooled, and a difference may be due to them alone.
        left_out: Strata dropped because one group has too few values in them; without a verdict, all of them.
    """

    alike: Sequence[tuple[Sequence[Value], Sequence[Value]]]
    is_fine: bool
    left_out: int

    @property
    def compared(self) -> tuple[int, int]:
        """Number of values of each group that a verdict rests on."""
        return self.sizes if self.is_fine else (0, 0)

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of values of each group in the strata."""
        return sum(len(first) for first, _ in self.alike), sum(len(second) for _, second in self.alike)

    def strata(self, number: Callable[[Value], float] = lambda value: value.number) -> list[Stratum]:
        """The strata with `number` applied to each value."""
        return [Stratum(list(map(number, first)), list(map(number, second))) for first, second in self.alike]


def pair_values(
    first: Sequence[Value], second: Sequence[Value], scale: Callable[[Fingerprint], Hashable] = lambda judge: judge
) -> Pairing:
    """
    Sort values into strata by scale and circumstances; with too few values left, pool the circumstances.

    Args:
        scale: Maps a judge to its scale; values on different scales never share a stratum. By default every
            judge has a scale of its own.
    """
    fine = _pair(first, second, lambda v: (scale(v.judge), v.circumstances), FEWEST_IN_A_STRATUM, is_fine=True)
    if min(fine.sizes) >= FEWEST_FOR_AN_INTERVAL:
        return fine
    pooled = _pair(first, second, lambda v: scale(v.judge), 1, is_fine=False)
    return replace(pooled, left_out=fine.left_out + len(fine.alike))


def _pair(
    first: Sequence[Value], second: Sequence[Value], kind: Callable[[Value], Hashable], fewest: int, *, is_fine: bool
) -> Pairing:
    groups = defaultdict[Hashable, tuple[list[Value], list[Value]]](lambda: ([], []))
    for side, values in enumerate((first, second)):
        for value in values:
            groups[kind(value)][side].append(value)
    alike = [sides for sides in groups.values() if min(map(len, sides)) >= fewest]
    return Pairing(alike, is_fine, len(groups) - len(alike))
