"""
Figures for every chain: totals, outcomes, judging cost, and what the investigations took.

A session counts once, by the latest completed score, as in `analytics.analytics`.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Annotated, Any

from pydantic import Field

from tarsy_scoring.analytics.analytics import DayOf, LeftOut, TrendPoint, trends
from tarsy_scoring.analytics.daily import SUMS, Selection, read_counts
from tarsy_scoring.postgres.database import Database

MOST_CHAINS = 500  # in one answer

# The fields of `Sums`.
COLUMNS = """
  sum(scores)::int AS scores, sum(totals)::int AS all_totals,
  coalesce(sum(totals) FILTER (WHERE NOT is_doubtful), 0)::int AS totals,
  coalesce(sum(points) FILTER (WHERE NOT is_doubtful), 0)::float8 AS points,
  coalesce(sum(squares) FILTER (WHERE NOT is_doubtful), 0)::float8 AS squares,
  sum(outcomes)::int AS outcomes, sum(passed)::int AS passed,
  sum(judging_costs)::int AS judging_costs, sum(judging_usd)::float8 AS judging_usd,
  sum(token_counts)::int AS token_counts, sum(input_tokens)::float8 AS input_tokens,
  sum(output_tokens)::float8 AS output_tokens, sum(agent_costs)::int AS agent_costs,
  sum(agent_usd)::float8 AS agent_usd, sum(durations)::int AS durations, sum(duration_s)::float8 AS duration_s"""

# By chain and judge; $9: by the day on which the sessions ended.
CHAINS = f"SELECT chain_id, criteria, judge_fingerprint, {COLUMNS} FROM {SUMS} s WHERE by_end = $9 GROUP BY 1, 2, 3"


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over scores. `totals`, `points` and `squares` leave out doubtful totals."""

    scores: int = 0
    all_totals: int = 0
    totals: int = 0
    points: float = 0.0
    squares: float = 0.0
    outcomes: int = 0
    passed: int = 0
    judging_costs: int = 0
    judging_usd: float = 0.0
    token_counts: int = 0
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    agent_costs: int = 0
    agent_usd: float = 0.0
    durations: int = 0
    duration_s: float = 0.0

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "Sums":
        """The sums in a row with `COLUMNS`."""
        return cls(*(row[name] for name in cls.__slots__))

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def mean(self) -> float | None:
        """Mean total."""
        return self.points / self.totals if self.totals else None

    @property
    def passed_share(self) -> float | None:
        """Share that passed among the scores with an outcome."""
        return self.passed / self.outcomes if self.outcomes else None


@dataclass(frozen=True, slots=True)
class Known:
    """Sum and average over the scores for which a number is known, and how many these are."""

    sum: float | None
    average: float | None
    count: int


@dataclass(frozen=True, slots=True)
class ChainAverages:
    """Figures over the latest scores in a chain. `average` leaves out flagged scores, as `points` does."""

    chain_id: str | None
    criteria: list[str]
    judges: Annotated[int, Field(description="Number of judge fingerprints, whose scales `average` mixes.")]
    scores: int
    count: Annotated[int, Field(description="Totals in `average`.")]
    average: float | None
    left_out: LeftOut
    outcomes: Annotated[int, Field(description="Scores that passed or failed; others have no rule.")]
    passed: int
    passed_share: Annotated[float | None, Field(description="`passed` / `outcomes`.")]
    judging_usd: Annotated[Known, Field(description="Cost of these scores.")]
    input_tokens: Annotated[Known, Field(description="Of the agents, per investigation.")]
    output_tokens: Known
    agent_usd: Annotated[Known, Field(description="Cost of these tokens, for models with prices.")]
    duration_s: Annotated[Known, Field(description="Duration of the investigations.")]


@dataclass(frozen=True, slots=True)
class ChainTrends:
    """Points by day, then fingerprint; and figures for every chain, those with most scores first."""

    points: list[TrendPoint]
    left_out: LeftOut
    chains: list[ChainAverages]
    chains_left_out: Annotated[int, Field(description="Chains beyond the first 500.")]


async def every_chain(database: Database, selection: Selection, day_of: DayOf) -> list[ChainAverages]:
    """
    Read the figures for the selected chains, those with most scores first.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    [rows] = await read_counts(database, selection, (CHAINS, (day_of == "ended",)))
    by_chain = defaultdict[str | None, list[Mapping[str, Any]]](list)
    for row in rows:
        by_chain[row["chain_id"]].append(row)
    averages = [_averages(chain_id, own) for chain_id, own in by_chain.items()]
    return sorted(averages, key=lambda chain: (-chain.scores, chain.chain_id or ""))


async def chain_trends(database: Database, selection: Selection, day_of: DayOf) -> ChainTrends:
    """Read the totals per day and the figures for every chain. Raises: DatabaseAway."""
    daily, chains = await asyncio.gather(
        trends(database, selection, day_of), every_chain(database, selection, day_of)
    )
    return ChainTrends(*daily, chains[:MOST_CHAINS], len(chains[MOST_CHAINS:]))


def _averages(chain_id: str | None, rows: Sequence[Mapping[str, Any]]) -> ChainAverages:
    sums = sum(map(Sums.of_row, rows), Sums())
    return ChainAverages(
        chain_id=chain_id,
        criteria=sorted({row["criteria"] for row in rows if row["criteria"] is not None}),
        judges=len({row["judge_fingerprint"] for row in rows}),
        scores=sums.scores,
        count=sums.totals,
        average=sums.mean,
        left_out=sums.all_totals - sums.totals,
        outcomes=sums.outcomes,
        passed=sums.passed,
        passed_share=sums.passed_share,
        judging_usd=_known(sums.judging_usd, sums.judging_costs),
        input_tokens=_known(sums.input_tokens, sums.token_counts),
        output_tokens=_known(sums.output_tokens, sums.token_counts),
        agent_usd=_known(sums.agent_usd, sums.agent_costs),
        duration_s=_known(sums.duration_s, sums.durations),
    )


def _known(total: float, count: int) -> Known:
    return Known(total, total / count, count) if count else Known(None, None, 0)
