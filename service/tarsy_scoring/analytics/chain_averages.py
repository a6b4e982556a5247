"""
Figures for every chain at once: totals, outcomes, judging cost, and what the investigations took.

A session counts once, by the latest completed score, as in `analytics.analytics`.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Any

from pydantic import Field

from tarsy_scoring.analytics.analytics import DayOf, LeftOut, TrendPoint, trends
from tarsy_scoring.analytics.daily import SUMS, Selection, read_counts
from tarsy_scoring.postgres.database import Database

MOST_CHAINS = 500  # in one answer
STEPS = 30  # in a trend line, about

# A row for each chain, with days in about $10 steps: arrays with one element for each step, criteria and
# judge. Only the first $11 chains; `chains` counts all. $9: by the day on which the sessions ended.
CHAINS = f"""
WITH counted AS MATERIALIZED (SELECT * FROM {SUMS} s WHERE by_end = $9),
span AS (SELECT min(day) AS first, ceil((max(day) - min(day) + 1) / $10::float8)::int AS step FROM counted),
steps AS (
  SELECT chain_id, criteria, judge_fingerprint, first + (day - first) / step * step AS start, step,
    sum(scores) AS scores, sum(totals) AS totals, sum(outcomes) AS outcomes, sum(passed) AS passed,
    sum(judging_costs) AS judging_costs, sum(judging_usd) AS judging_usd, sum(token_counts) AS token_counts,
    sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens, sum(agent_costs) AS agent_costs,
    sum(agent_usd) AS agent_usd, sum(durations) AS durations, sum(duration_s) AS duration_s,
    sum(totals) FILTER (WHERE NOT is_doubtful) AS sure_totals,
    sum(points) FILTER (WHERE NOT is_doubtful) AS sure_points
  FROM counted, span GROUP BY 1, 2, 3, 4, 5
)
SELECT chain_id, step, sum(scores) AS scores, sum(totals) AS totals, sum(outcomes) AS outcomes,
  sum(passed) AS passed, sum(judging_costs) AS judging_costs, sum(judging_usd) AS judging_usd,
  sum(token_counts) AS token_counts, sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens,
  sum(agent_costs) AS agent_costs, sum(agent_usd) AS agent_usd, sum(durations) AS durations,
  sum(duration_s) AS duration_s,
  coalesce(sum(sure_totals), 0) AS sure_totals, sum(sure_points) AS sure_points,
  array_agg(start ORDER BY start, judge_fingerprint) AS starts,
  array_agg(criteria ORDER BY start, judge_fingerprint) AS all_criteria,
  array_agg(judge_fingerprint ORDER BY start, judge_fingerprint) AS judges,
  array_agg(coalesce(sure_totals, 0)::bigint ORDER BY start, judge_fingerprint) AS counts,
  array_agg(sure_points::float8 / nullif(sure_totals, 0) ORDER BY start, judge_fingerprint) AS averages,
  count(*) OVER () AS chains
FROM steps GROUP BY 1, 2 ORDER BY sum(scores) DESC, chain_id LIMIT $11
"""


StepDays = Annotated[int, Field(description="Days in a step of `trend`.")]
ChainsLeftOut = Annotated[int, Field(description="Chains beyond the first 500.")]


@dataclass(frozen=True, slots=True)
class Known:
    """Sum and average over the scores for which a number is known, and how many these are."""

    sum: float | None
    average: float | None
    count: int


@dataclass(frozen=True, slots=True)
class ChainStep:
    """A chain's average total under one judge over `step_days` from this day on."""

    day: date
    judge_fingerprint: str | None
    average: float
    count: int


@dataclass(frozen=True, slots=True)
class ChainAverages:
    """
    Figures over the latest scores in a chain. Totals and trend leave out flagged scores, as `points` does.
    """

    chain_id: str | None
    criteria: list[str]
    judges: Annotated[
        int, Field(description="Number of judge fingerprints. Of several judges, `average` mixes scales.")
    ]
    scores: int
    count: Annotated[int, Field(description="Totals in `average`.")]
    average: float | None
    left_out: LeftOut
    outcomes: Annotated[
        int, Field(description="Scores that passed or failed; the others have no threshold and no gates.")
    ]
    passed: int
    passed_share: Annotated[float | None, Field(description="`passed` / `outcomes`.")]
    judging_usd: Annotated[Known, Field(description="Cost of these scores.")]
    input_tokens: Annotated[Known, Field(description="Of the agents, per investigation.")]
    output_tokens: Known
    agent_usd: Annotated[
        Known, Field(description="Cost of these tokens where the models of the agents have prices.")
    ]
    duration_s: Annotated[Known, Field(description="Duration of the investigations.")]
    trend: Annotated[list[ChainStep], Field(description="Do not connect steps of two judges.")]


@dataclass(frozen=True, slots=True)
class EveryChain:
    """Chains, those with most scores first."""

    chains: list[ChainAverages]
    step_days: StepDays
    chains_left_out: ChainsLeftOut


@dataclass(frozen=True, slots=True)
class ChainTrends:
    """Points by day, then fingerprint; and figures for every chain."""

    points: list[TrendPoint]
    left_out: LeftOut
    chains: list[ChainAverages]
    step_days: StepDays
    chains_left_out: ChainsLeftOut


async def every_chain(database: Database, selection: Selection, day_of: DayOf = "scored") -> EveryChain:
    """
    Read the figures for the selected chains.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    [rows] = await read_counts(database, selection, (CHAINS, (day_of == "ended", STEPS, MOST_CHAINS)))
    step_days = rows[0]["step"] if rows else 1
    return EveryChain(
        [_averages(row) for row in rows], step_days, rows[0]["chains"] - len(rows) if rows else 0
    )


async def chain_trends(database: Database, selection: Selection, day_of: DayOf = "scored") -> ChainTrends:
    """Read the totals per day and the figures for every chain. Raises: DatabaseAway."""
    daily, chains = await asyncio.gather(
        trends(database, selection, day_of), every_chain(database, selection, day_of)
    )
    return ChainTrends(daily.points, daily.left_out, chains.chains, chains.step_days, chains.chains_left_out)


def _averages(row: Mapping[str, Any]) -> ChainAverages:
    steps = zip(row["starts"], row["judges"], row["averages"], row["counts"], strict=True)
    outcomes, passed, totals = int(row["outcomes"]), int(row["passed"]), int(row["sure_totals"])
    return ChainAverages(
        chain_id=row["chain_id"],
        criteria=sorted({name for name in row["all_criteria"] if name is not None}),
        judges=len(set(row["judges"])),
        scores=int(row["scores"]),
        count=totals,
        average=float(row["sure_points"]) / totals if totals else None,
        left_out=int(row["totals"]) - totals,
        outcomes=outcomes,
        passed=passed,
        passed_share=passed / outcomes if outcomes else None,
        judging_usd=_known(row["judging_usd"], row["judging_costs"]),
        input_tokens=_known(row["input_tokens"], row["token_counts"]),
        output_tokens=_known(row["output_tokens"], row["token_counts"]),
        agent_usd=_known(row["agent_usd"], row["agent_costs"]),
        duration_s=_known(row["duration_s"], row["durations"]),
        trend=[ChainStep(*step) for step in steps if step[3]],
    )


def _known(total: Decimal, counted: Decimal) -> Known:
    known = int(counted)
    return Known(float(total), float(total) / known, known) if known else Known(None, None, 0)
