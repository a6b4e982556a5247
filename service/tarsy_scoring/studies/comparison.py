"""
Compares two versions' sessions metric by metric: totals, outcomes and how the agents worked.

Sessions are compared within chain and alert type, totals and outcomes within the judge as well. The data is
observational: incidents were not assigned to versions at random, so the version is only one explanation of a
difference.
"""

import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tarsy_scoring.scores.bands import DOUBTFUL_FLAGS
from tarsy_scoring.studies.estimates import Change, change_within, sizes_of, strata_of

CONFIDENCE = 0.95
JUDGED = ("total_score", "pass_share")
METRICS = (
    *JUDGED,
    "error_rate",
    "retry_rate",
    "first_try_success_rate",
    "iteration_ratio",
    "total_commands",
    "help_invocations",
)
# How often equal versions may show a difference in any metric. The total, the main question, gets half.
FALSE_ALARMS = 0.05


@dataclass(frozen=True, slots=True)
class ScoredSession:
    """A session's label value and latest score, named as in the score document."""

    value: str
    chain_id: str | None
    alert_type: str | None
    total_score: int | None
    interaction: Mapping[str, Any] | None
    judge_fingerprint: str | None
    flags: Collection[str]
    outcome: str | None

    def number(self, metric: str) -> float | None:
        """The metric's value; None without one, and for doubtful totals."""
        if metric == "total_score":
            return None if DOUBTFUL_FLAGS.intersection(self.flags) else self.total_score
        if metric == "pass_share":
            return None if self.outcome is None else float(self.outcome == "pass")
        found = (self.interaction or {}).get(metric)
        return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def compare_versions(sessions: Sequence[ScoredSession], values: tuple[str, str]) -> dict[str, Any]:
    """
    Compare two label values, the older first, metric by metric; other sessions are ignored.

    Returns:
        The JSON document: `sessions` counts those of each version, `judges` those who gave the totals, and
        `doubtful` the sessions whose total is left out, see `DOUBTFUL_FLAGS`. `meaning` says in plain sentences
        what may be concluded and what not.
    """
    first, second = ([s for s in sessions if s.value == value] for value in values)
    both = [*first, *second]
    metrics = [_compare(metric, first, second) for metric in METRICS]
    judges = len({s.judge_fingerprint for s in both if s.number("total_score") is not None})
    doubtful = sum(s.total_score is not None and not DOUBTFUL_FLAGS.isdisjoint(s.flags) for s in both)
    return {
        "values": values,
        "sessions": [len(first), len(second)],
        "judges": judges,
        "doubtful": doubtful,
        "metrics": metrics,
        "meaning": list(_meaning(values, metrics, judges, doubtful)),
    }


def _compare(metric: str, first: Sequence[ScoredSession], second: Sequence[ScoredSession]) -> dict[str, Any]:
    """
    Compare one metric.

    `compared` is how many sessions have a counterpart. `difference` is the second minus the first within strata,
    which may differ from the two means. The 95 % interval ignores how many metrics are tested; the verdict does
    not. `chance` is a two-sided p-value.
    """
    older, newer = (
        [
            ((s.chain_id, s.alert_type, s.judge_fingerprint if metric in JUDGED else None), number)
            for s in side
            if (number := s.number(metric)) is not None
        ]
        for side in (first, second)
    )
    strata = strata_of(older, newer)
    change, verdict = change_within(strata, CONFIDENCE), "too few"
    if change.estimate.low is not None:
        verdict = _verdict(metric, change)
    sides = [
        {"n": len(side), "mean": statistics.fmean(n for _, n in side) if side else None, "compared": compared}
        for side, compared in zip((older, newer), sizes_of(strata), strict=True)
    ]
    return {
        "metric": metric,
        "first": sides[0],
        "second": sides[1],
        "difference": asdict(change.estimate),
        "chance": None if verdict == "too few" else change.chance,
        "verdict": verdict,
    }


def _verdict(metric: str, change: Change) -> str:
    allowed = FALSE_ALARMS / 2 if metric == METRICS[0] else FALSE_ALARMS / 2 / (len(METRICS) - 1)
    if change.chance <= allowed:
        return "higher" if (change.estimate.value or 0.0) > 0 else "lower"
    return "no difference shown"


def _meaning(
    values: tuple[str, str], found: Sequence[Mapping[str, Any]], judges: int, doubtful: int
) -> Iterator[str]:
    older, newer = values
    shown = [f"{c['metric']} {c['verdict']}" for c in found if c["verdict"] in ("higher", "lower")]
    if all(c["verdict"] == "too few" for c in found):
        yield "There are too few comparable sessions to show anything."
    else:
        yield f"{newer!r} against {older!r}: {', '.join(shown)}." if shown else "No difference is shown."
    total = found[0]
    if total["verdict"] == "too few" and judges > 1 and min(total["first"]["n"], total["second"]["n"]):
        yield (
            f"{judges} judges gave the totals, and totals of different judges are not compared: "
            "`tarsy-scoring rescore --since TIME` scores all sessions with today's judge."
        )
    if doubtful:
        yield f"Totals left out because they are flagged as doubtful: {doubtful}."
    yield (
        "'No difference shown' does not mean equal: the interval shows how large a difference may still be. "
        "The versions may have met other incidents, at other times, so a difference is associated with the "
        "version, not necessarily caused by it."
    )
