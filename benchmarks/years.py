"""
Simulate scores with a planted change, and count how often it is found: `python -m benchmarks.years`.

Totals are whole numbers, clipped to 0-100. Each of three alert types has its own mean. Their mix shifts over
time.
"""

import argparse
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

from rich.console import Console

from benchmarks.labelling import AGREEMENTS, Labels, coverages, half_widths_as_planned, queue_estimates
from tarsy_scoring.missing_tools.tool_effect import ChainDemand, measure_demand
from tarsy_scoring.statistics.comparison import MetricComparison, ScoredSession, compare_versions
from tarsy_scoring.statistics.drift import (
    WINDOW,
    AnchorJudgement,
    Cause,
    Drift,
    OrdinaryScore,
    explain_new_judge,
    find_change,
)
from tarsy_scoring_lab.simulated import draws

RUNS = 1000
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
ALERT_MEANS = {"memory": 55.0, "disk": 65.0, "latency": 45.0}
MIX_BEFORE, MIX_AFTER = (0.5, 0.3, 0.2), (0.3, 0.4, 0.3)
JUDGE_NOISE = 6.0  # standard deviation of one judgement
ANCHORS, SESSIONS, SHIFT = 40, 300, 8.0
SHOWN = ("judge", "versions", "years", "trust", "queue", "tools")
WINDOW_DAYS = 100  # of 10 scores


def total(draw: random.Random, quality: float, error: float = JUDGE_NOISE) -> int:
    """Draw the total of one judgement."""
    return min(100, max(0, round(quality + draw.gauss(0, error))))


# --- a new judge ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewJudge:
    """
    A change of judge, and what changed with it.

    Args:
        spread: Standard deviation of the sessions within an alert type, before the judge's error.
        error: Standard deviation of one judgement.
    """

    judge: float
    agents: float
    spread: float = 15.0
    anchors: int = ANCHORS
    judgements: int = 1
    sessions: int = SESSIONS
    error: float = field(default=JUDGE_NOISE, repr=False)  # not in the seed: such cases draw alike

    @property
    def cause(self) -> Cause:
        """The planted cause."""
        if self.judge and self.agents:
            return "both"
        return "judge" if self.judge else "agents" if self.agents else "none"

    def run(self, draw: random.Random) -> Drift:
        """Simulate scores with the planted change, and return what drift detection finds."""
        scores, anchors = list[OrdinaryScore](), list[AnchorJudgement]()
        for judge, mix, shift in (("old", MIX_BEFORE, 0.0), ("new", MIX_AFTER, self.judge + self.agents)):
            for alert_type in draw.choices(list(ALERT_MEANS), mix, k=self.sessions):
                quality = draw.gauss(ALERT_MEANS[alert_type], self.spread)
                scores.append(OrdinaryScore(BEGINNING, judge, alert_type, total(draw, quality + shift, self.error)))
        for name, alert_type in enumerate(draw.choices(list(ALERT_MEANS), MIX_BEFORE, k=self.anchors)):
            quality = draw.gauss(ALERT_MEANS[alert_type], self.spread)
            for judge, shift in (("old", 0.0), ("new", self.judge)):
                for _ in range(self.judgements):
                    anchors.append(AnchorJudgement(str(name), judge, total(draw, quality + shift, self.error)))
        return explain_new_judge(scores, anchors, "old", "new")


def causes_found(planted: NewJudge, runs: int, seed: int) -> Counter[Cause | None]:
    """How often each cause was found."""
    return Counter(planted.run(draws(seed, planted, run)).cause for run in range(runs))


# --- two versions under two judges ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TwoVersions:
    """
    Two versions of the agents, and a new judge that scored more sessions of the second version.

    Args:
        agents: Points by which the second version is better.
        judge: Points by which the new judge is milder.
        new_judge: Share of the first and of the second version that the new judge scored.
    """

    agents: float
    judge: float
    new_judge: tuple[float, float] = (0.0, 1.0)
    spread: float = 15.0
    anchors: int = ANCHORS
    sessions: int = SESSIONS

    def run(self, draw: random.Random) -> MetricComparison:
        """Simulate scores with the planted difference, and compare the totals of both versions."""
        sessions, anchors = list[ScoredSession](), list[AnchorJudgement]()
        plan = zip(("v1", "v2"), (0.0, self.agents), (MIX_BEFORE, MIX_AFTER), self.new_judge, strict=True)
        for version, better, mix, share in plan:
            for alert_type in draw.choices(list(ALERT_MEANS), mix, k=self.sessions):
                judge, milder = ("new", self.judge) if draw.random() < share else ("old", 0.0)
                quality = draw.gauss(ALERT_MEANS[alert_type], self.spread) + better
                scored = total(draw, quality + milder)
                sessions.append(ScoredSession(version, "kubernetes", alert_type, scored, None, judge, (), None))
        for name, alert_type in enumerate(draw.choices(list(ALERT_MEANS), MIX_BEFORE, k=self.anchors)):
            quality = draw.gauss(ALERT_MEANS[alert_type], self.spread)
            for judge, milder in (("old", 0.0), ("new", self.judge)):
                anchors.append(AnchorJudgement(str(name), judge, total(draw, quality + milder)))
        return compare_versions(sessions, ("v1", "v2"), anchors, resamples=200).metrics[0]


def verdicts_found(planted: TwoVersions, runs: int, seed: int) -> Counter[str]:
    """How often each verdict on the totals was given."""
    return Counter(planted.run(draws(seed, planted, run)).verdict for run in range(runs))


# --- years under one judge -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Year:
    """
    Days of scores under one judge, checked for a change at the end of every day.

    Args:
        shift: Points of the change planted at `shift_day`; 0 in a quiet year.
        day_spread: Standard deviation of the part of the quality that all sessions of a day share, as when
            one incident causes many sessions.
    """

    shift: float = 0.0
    shift_day: int = 0
    days: int = 365
    per_day: int = 10
    spread: float = 15.0
    day_spread: float = 0.0

    def first_alarm(self, draw: random.Random) -> int | None:
        """The day of the first alarm; None if there is none."""
        scores = list[OrdinaryScore]()
        kept = WINDOW + self.per_day
        for day in range(self.days):
            progress = day / self.days
            mix = [b + (a - b) * progress for b, a in zip(MIX_BEFORE, MIX_AFTER, strict=True)]
            common = draw.gauss(0, self.day_spread) + (self.shift if day >= self.shift_day else 0.0)
            for number, alert_type in enumerate(draw.choices(list(ALERT_MEANS), mix, k=self.per_day)):
                quality = draw.gauss(ALERT_MEANS[alert_type], self.spread) + common
                at = BEGINNING + timedelta(days=day, minutes=number)
                scores.append(OrdinaryScore(at, "judge", alert_type, total(draw, quality)))
            scores = scores[-kept:]
            if find_change(scores).cause == "agents":
                return day
        return None


def first_alarms(year: Year, runs: int, seed: int) -> list[int | None]:
    """The day of the first alarm of each run."""
    return [year.first_alarm(draws(seed, year, run)) for run in range(runs)]


# --- missing tools -------------------------------------------------------------------------------------


def verdicts_of_tools(left: float, runs: int, seed: int) -> Counter[str]:
    """Number of runs that gave each verdict at least once, with a check after every fifth of 400 sessions."""
    ever = Counter[str]()
    for run in range(runs):
        draw = draws(seed, "tool", left, run)
        rate = draw.choice((0.05, 0.1, 0.3))
        before = sum(draw.random() < rate for _ in range(100))
        after, seen = 0, set[str]()
        for sessions in range(1, 401):
            after += draw.random() < rate * left
            if sessions % 5 == 0:
                seen.add(measure_demand([ChainDemand(100, before, sessions, after)]).verdict)
        ever.update(seen)
    return ever


# --- all of it -----------------------------------------------------------------------------------------


def show_new_judge(console: Console, runs: int, seed: int, error: float) -> None:
    """Print a row per planted cause, spread and number of judgements."""
    console.print(f"\nA new judge, {ANCHORS} anchors, {SESSIONS} sessions per side, error {error:g}, {runs} runs each")
    for spread, judgements in ((15.0, 1), (15.0, 3), (20.0, 1), (20.0, 3)):
        console.print(f"  sessions' SD {spread:g} within alert types, {judgements} judgement(s) of an anchor per judge")
        for judge, agents in ((0.0, 0.0), (SHIFT, 0.0), (0.0, SHIFT), (SHIFT, SHIFT), (SHIFT, -SHIFT), (0.0, -SHIFT)):
            planted = NewJudge(judge, agents, spread, judgements=judgements, error=error)
            found = causes_found(planted, runs, seed)
            listed = ", ".join(f"{cause} {count}" for cause, count in found.most_common())
            console.print(
                f"    judge {judge:+g}, agents {agents:+g}: {found[planted.cause] / runs:6.1%} right   {listed}"
            )


def show_versions(console: Console, runs: int, seed: int) -> None:
    """Print a row per planted effect, mix of judges, spread and number of anchors."""
    console.print(f"\nTwo versions under two judges, {SESSIONS} sessions of each, {runs} runs each")
    for mix in ((0.0, 1.0), (0.1, 0.7)):
        for agents, judge in ((0.0, SHIFT), (0.0, -SHIFT), (SHIFT, -SHIFT), (SHIFT, SHIFT), (SHIFT, 0.0)):
            for spread, anchors in ((15.0, ANCHORS), (20.0, ANCHORS), (15.0, 10), (15.0, 0)):
                found = verdicts_found(TwoVersions(agents, judge, mix, spread, anchors), runs, seed)
                listed = ", ".join(f"{verdict} {count}" for verdict, count in found.most_common())
                console.print(
                    f"    new judge scored {mix[0]:.0%} and {mix[1]:.0%}, {anchors} anchors, SD {spread:g}: "
                    f"agents {agents:+g}, judge {judge:+g}: {listed}"
                )


def show_years(console: Console, runs: int, seed: int) -> None:
    """Print the share of false alarms in quiet years, and the delay until a shift is found."""
    console.print(f"\nOne judge, daily looks, 10 scores a day, {runs} years each")
    for name, year in (
        ("quiet, SD 15", Year()),
        ("quiet, SD 20", Year(spread=20.0)),
        ("quiet, SD 15, days differ by SD 3", Year(day_spread=3.0)),
    ):
        alarms = sum(day is not None for day in first_alarms(year, runs, seed))
        console.print(f"    {name}: false alarm in {alarms} ({alarms / runs:.1%})")
    for spread, per_day in ((15.0, 10), (20.0, 10), (15.0, 30)):
        year = Year(SHIFT, WINDOW_DAYS, WINDOW_DAYS + 90, per_day, spread)
        days = [None if day is None else day - WINDOW_DAYS + 1 for day in first_alarms(year, runs, seed)]
        delays = sorted(d for d in days if d is not None and d > 0)
        early = sum(d is not None and d <= 0 for d in days)
        p50, p90 = (delays[int(p * (len(delays) - 1))] for p in (0.5, 0.9))
        console.print(
            f"    shift of {SHIFT:g}, SD {spread:g}, {per_day} a day: found in {len(delays)} of {runs} within 90 days, "
            f"{early} false before; days until found: median {p50}, 9 of 10 within {p90}"
        )


def show_trust(console: Console, runs: int, seed: int) -> None:
    """Print the coverage of intervals, and how wide they are after the planned number of labels."""
    console.print(f"\nThe trust card, {runs} simulations each: intervals of 95 % that hold the truth")
    for agreement in AGREEMENTS:
        cases: tuple[tuple[int, Labels], ...] = (
            *((40, "alike"), (100, "alike"), (200, "alike")),
            *((100, "unequal"), (200, "unequal"), (100, "queue"), (200, "queue")),
        )
        for labels, how in cases:
            found = coverages(agreement, labels, runs, seed, how)
            listed = ", ".join(
                f"{name} {c.share:.1%}{'' if c.intervals == runs else f' of {c.intervals}'}"
                for name, c in zip(("kappa", "Spearman", "mean difference"), found, strict=True)
            )
            console.print(f"    {agreement.name}, {labels} labels, {how}: {listed}")
    console.print("\nAs many labels as the card asks for: half the interval of kappa afterwards")
    for agreement in AGREEMENTS:
        for labels in (40, 80):
            widths = sorted(half_widths_as_planned(agreement, labels, max(2, runs // 5), seed))
            kept = [sum(w <= limit for w in widths) / len(widths) for limit in (0.1, 0.11, 0.12)]
            console.print(
                f"    {agreement.name}, planned with {labels}: median {widths[len(widths) // 2]:.3f}; at most 0.10 in "
                f"{kept[0]:.0%}, 0.11 in {kept[1]:.0%}, 0.12 in {kept[2]:.0%}"
            )


def show_tools(console: Console, runs: int, seed: int) -> None:
    """Print the verdicts on a tool that changed nothing, and on one that removes nearly all demand."""
    console.print(f"\nMissing tools, 400 sessions with the tool, a look after every fifth, {runs} runs each")
    for left in (1.0, 0.05):
        found = verdicts_of_tools(left, runs, seed)
        shares = ", ".join(f"{verdict} {found[verdict] / runs:.1%}" for verdict in ("confirmed", "still_missed"))
        console.print(f"    {left:.0%} of the demand left: {shares}")


def show_queue(console: Console, runs: int, seed: int) -> None:
    """Print bias and error of the estimates from each part of the review queue."""
    console.print(
        f"\nThe review queue, half of it random, {runs} draws: share of scores in another band than the label"
    )
    for size, picks in ((60, 20), (100, 40), (300, 40), (1000, 40)):
        found = queue_estimates(size, picks, runs, seed)
        listed = "; ".join(
            f"{name} bias {found.bias(values):+.3f} error {found.error(values):.3f}"
            for name, values in (
                ("random share", found.random_share),
                ("informative share", found.informative_share),
                ("all, weighed", found.all_weighed),
            )
        )
        console.print(f"    {picks} of {size}, truth {found.truth:.3f}: {listed}")


def main() -> None:
    """Run the chosen simulations, by default all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of each case; long ones take a share (default {RUNS})")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=SHOWN, action="append", help="repeatable")
    parser.add_argument(
        "--error",
        type=float,
        default=JUDGE_NOISE,
        help=f"of a judgement, in points; for judge (default {JUDGE_NOISE:g})",
    )
    given = parser.parse_args()
    shows: dict[str, tuple[Callable[[Console, int, int], None], float]] = {
        "judge": (partial(show_new_judge, error=given.error), 1.0),
        "versions": (show_versions, 0.3),
        "years": (show_years, 0.3),
        "trust": (show_trust, 0.5),
        "queue": (show_queue, 1.0),
        "tools": (show_tools, 0.3),
    }
    console = Console(width=160, highlight=False)
    for name in given.only or shows:
        show, share = shows[name]
        show(console, max(2, round(given.runs * share)), given.seed)


if __name__ == "__main__":
    main()
