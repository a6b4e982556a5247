"""Reports results of the benchmark: a table for people, JSON for programs."""

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.scenarios import TURNS, Result, Scenario

NOISY = 0.05  # share of the machine that bystanders may use before the numbers are doubtful


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and most of repeated values."""

    median: float
    least: float
    most: float

    def text(self, digits: int) -> str:
        """The median, and if the values differ also their range, in a second line."""
        median, least, most = (f"{value:.{digits}f}" for value in (self.median, self.least, self.most))
        return median if least == most else f"{median}\n{least}-{most}"

    def rounded(self) -> dict[str, float]:
        """The values to four digits."""
        return {name: float(f"{value:.4g}") for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Summary:
    """
    The runs of one scenario.

    Args:
        beside: By the kind of another program: pairs of a run and the other's under the same load in the same round.
    """

    scenario: Scenario
    runs: Sequence[Result]
    beside: Mapping[str, Sequence[tuple[Result, Result]]]

    def spread(self, value: Callable[[Result], float | None]) -> Spread | None:
        """The spread of a value over the runs that have it; None if none has."""
        return _spread([v for v in map(value, self.runs) if v is not None])

    def median(self, value: Callable[[Result], float | None]) -> float | None:
        """The median of a value over the runs that have it; None if none has."""
        found = self.spread(value)
        return found.median if found else None

    def ratio(self, kind: str, value: Callable[[Result], float]) -> Spread | None:
        """Median and range of a value over the other program's; None if that was not measured."""
        return _spread([value(one) / value(other) for one, other in self.beside[kind]])


def _spread(values: Sequence[float]) -> Spread | None:
    return Spread(median(values), min(values), max(values)) if values else None


def summarize_rounds(rounds: Sequence[Sequence[Result]]) -> list[Summary]:
    """
    Summarize the results by scenario, in the order of their first appearance.

    Args:
        rounds: The results of each round. A round lacks the scenarios that failed in it.
    """
    summaries = []
    for scenario in dict.fromkeys(r.scenario for results in rounds for r in results):
        pairs = [(r, results) for results in rounds for r in results if r.scenario == scenario]
        beside: dict[str, list[tuple[Result, Result]]] = {kind: [] for kind in _OTHERS}
        for r, results in pairs:
            for other in results:
                if other.scenario.load == scenario.load and other.scenario.kind in beside.keys() - {scenario.kind}:
                    beside[other.scenario.kind].append((r, other))
        summaries.append(Summary(scenario, [r for r, _ in pairs], beside))
    return summaries


# What a report has of each scenario. CPU in seconds per score, memory in bytes, rates in scores per second.
_VALUES: Mapping[str, Callable[[Result], float | None]] = {
    "rate": lambda r: r.rate,
    "whole_rate": lambda r: r.whole.rate,
    "cpu_s": lambda r: r.cpu_s,
    "all_cpu_s": lambda r: r.all_cpu_s,
    "judge_cpu_s": lambda r: r.others_cpu_s.get("judge"),
    "database_cpu_s": lambda r: r.others_cpu_s.get("database"),
    "broker_cpu_s": lambda r: r.others_cpu_s.get("broker"),
    "peak_rss": lambda r: r.peak_rss,
    "transactions": lambda r: r.own.transactions if r.own else None,
    "inserts": lambda r: r.own.inserts if r.own else None,
    "updates": lambda r: r.own.updates if r.own else None,
    "tarsy_transactions": lambda r: r.tarsy.transactions if r.tarsy else None,
    "judge_calls": lambda r: r.judge_calls / r.completed,
    "bystanders_share": lambda r: r.bystanders_share,
}
_OTHERS = ("bare", "peer")
# The values that are divided by theirs, of the same round.
_RATIOS: Mapping[str, Callable[[Result], float]] = {
    "CPU": lambda r: r.all_cpu_s,
    "scores/s": lambda r: r.rate,
    "memory": lambda r: r.peak_rss,
}


def as_json(summaries: Sequence[Summary], about: dict[str, Any]) -> dict[str, Any]:
    """The report as JSON: of each value its median and range, to four digits. It has no host name and no path."""
    rows = []
    for one in summaries:
        spreads = {name: one.spread(value) for name, value in _VALUES.items()}
        spreads |= {f"{what} of {kind}": one.ratio(kind, value) for kind in _OTHERS for what, value in _RATIOS.items()}
        values = {name: spread.rounded() for name, spread in spreads.items() if spread is not None}
        rows.append(asdict(one.scenario) | {"runs": len(one.runs), "values": values})
    return {**about, "machine": machine(), "results": rows}


def machine() -> dict[str, Any]:
    """Hardware and software of the measurement."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.system(),
        "python": platform.python_version(),
    }


def print_table(console: Console, summaries: Sequence[Summary], about: dict[str, Any]) -> None:
    """Print the table, and the results that other load or extra calls make doubtful."""
    at = machine()
    context = f"{about['context_bytes'] // 1000} KB per context"
    title = f"{at['cores']} cores, Python {at['python']}, {about['broker']}, {context}"
    table = Table(title=title, title_justify="left", caption_justify="left", caption=_CAPTION)
    for heading in (*_HEADINGS, *_CELLS):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for one in summaries:
        table.add_row(*_cells(one))
    console.print(table)
    for one in summaries:
        name, runs = one.scenario.name, one.runs
        ratios = {what: one.ratio("peer", value) for what, value in _RATIOS.items()}
        if found := [f"{what} {' '.join(ratio.text(2).split())}" for what, ratio in ratios.items() if ratio]:
            console.print(f"  of peer  {name}: {', '.join(found)}")
        share = one.median(_VALUES["bystanders_share"])
        if share is not None and share > NOISY:
            console.print(f"  noisy    {name}: others used {share:.0%} of the machine")
        calls, completed = sum(r.judge_calls for r in runs), sum(r.completed for r in runs)
        if calls != TURNS * completed:
            console.print(f"  odd      {name}: {calls} calls of the judge for {completed} scores")


_HEADINGS = ("", "scores", "/s", "of bare")
_CELLS = {  # by heading: the value, its digits and factor
    "/s all": ("whole_rate", 1, 1),
    "CPU ms": ("cpu_s", 2, 1000),
    "pg": ("database_cpu_s", 1, 1000),
    "broker": ("broker_cpu_s", 1, 1000),
    "all ms": ("all_cpu_s", 1, 1000),
    "judge": ("judge_cpu_s", 1, 1000),
    "MB": ("peak_rss", 0, 2**-20),
    "tx": ("transactions", 1, 1),
    "of tarsy": ("tarsy_transactions", 1, 1),
    "updates": ("updates", 1, 1),
}
_CAPTION = (
    "Medians, below them least and most of the runs. /s: scores per second without ramp and tail; all: from first claim to "
    "last completion. CPU ms per score and peak MB of the measured process; pg, broker, judge: CPU ms of those processes per "
    "score; all ms: without the judge. tx, of tarsy: transactions in both databases, updates: updated rows, per score."
)


def _cells(one: Summary) -> list[str]:
    spreads = (one.spread(_VALUES["rate"]), 1), (one.ratio("bare", lambda r: r.rate), 2)
    medians = [(one.median(_VALUES[name]), digits, factor) for name, digits, factor in _CELLS.values()]
    return [
        one.scenario.name,
        str(one.scenario.scores),
        *("" if spread is None else spread.text(digits) for spread, digits in spreads),
        *("" if value is None else f"{factor * value:.{digits}f}" for value, digits, factor in medians),
    ]
