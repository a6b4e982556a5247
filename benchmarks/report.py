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
    """The runs of one scenario, and their rates over the bare client's in the same round."""

    scenario: Scenario
    runs: Sequence[Result]
    ratios: Sequence[float]

    def spread(self, value: Callable[[Result], float | None]) -> Spread | None:
        """The spread of a value over the runs that have it; None if none has."""
        return _spread([v for v in map(value, self.runs) if v is not None])

    def median(self, value: Callable[[Result], float | None]) -> float | None:
        """The median of a value over the runs that have it; None if none has."""
        found = self.spread(value)
        return found.median if found else None

    @property
    def ratio_to_bare(self) -> Spread | None:
        """Median and range of the ratios of the pairs; None if the bare client was not measured."""
        return _spread(self.ratios)


def _spread(values: Sequence[float]) -> Spread | None:
    return Spread(median(values), min(values), max(values)) if values else None


def summarize_rounds(rounds: Sequence[Sequence[Result]]) -> list[Summary]:
    """
    Summarize the results by scenario, in the order of their first appearance.

    Args:
        rounds: The results of each round. A round lacks the scenarios that failed in it.
    """
    scenarios = dict.fromkeys(r.scenario for results in rounds for r in results)
    summaries = []
    for scenario in scenarios:
        pairs = [(r, results) for results in rounds for r in results if r.scenario == scenario]
        ratios = [ratio_to_bare(r, results) for r, results in pairs]
        summaries.append(Summary(scenario, [r for r, _ in pairs], [ratio for ratio in ratios if ratio is not None]))
    return summaries


def ratio_to_bare(result: Result, results: Sequence[Result]) -> float | None:
    """Rate divided by the bare client's under the same load; None if it was not measured."""
    asked = result.scenario
    for other in results:
        its = other.scenario
        same_load = (its.latency_s, its.slots) == (asked.latency_s, asked.slots)
        if its.kind == "bare" and same_load and its != asked:
            return result.rate / other.rate
    return None


# What a report has of each scenario. CPU in seconds per score, memory in bytes, rates in scores per second.
_VALUES: Mapping[str, Callable[[Result], float | None]] = {
    "rate": lambda r: r.rate,
    "whole_rate": lambda r: r.whole.rate,
    "share_of_ideal": lambda r: r.share_of_ideal,
    "cpu_s": lambda r: r.cpu_s,
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


def as_json(summaries: Sequence[Summary], about: dict[str, Any]) -> dict[str, Any]:
    """The report as JSON: of each value its median and range, to four digits. It has no host name and no path."""
    rows = []
    for one in summaries:
        spreads = {name: one.spread(value) for name, value in _VALUES.items()} | {"ratio_to_bare": one.ratio_to_bare}
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
    for heading in (*_HEADINGS, *_BESIDE):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for one in summaries:
        table.add_row(*_cells(one))
    console.print(table)
    for one in summaries:
        name, runs = one.scenario.name, one.runs
        share = one.median(_VALUES["bystanders_share"])
        if share is not None and share > NOISY:
            console.print(f"  noisy    {name}: others used {share:.0%} of the machine")
        calls, completed = sum(r.judge_calls for r in runs), sum(r.completed for r in runs)
        if calls != TURNS * completed:
            console.print(f"  odd      {name}: {calls} calls of the judge for {completed} scores")


_HEADINGS = ("", "scores", "/s", "/s all", "of ideal", "of bare", "CPU ms", "MB")
_BESIDE = ("judge", "pg", "broker", "tx", "updates")
_CAPTION = (
    "Medians, and below them least and most of the runs. /s: scores per second without ramp and tail; all: from "
    "first claim to last completion. CPU ms per score and peak MB of the measured process; judge, pg, broker: CPU ms "
    "per score of the processes beside it; tx: transactions per score, of both databases; updates: updated rows per "
    "score."
)


def _transactions(r: Result) -> float | None:
    """Per score in both databases; the peer has one."""
    return r.own.transactions + (r.tarsy.transactions if r.tarsy else 0.0) if r.own else None


def _cells(one: Summary) -> list[str]:
    def cell(name: str, digits: int, factor: float = 1.0) -> str:
        value = one.median(_VALUES[name])
        return "" if value is None else f"{factor * value:.{digits}f}"

    rate = one.spread(_VALUES["rate"])
    ratio = one.ratio_to_bare
    transactions = one.median(_transactions)
    return [
        one.scenario.name,
        str(one.scenario.scores),
        rate.text(1) if rate else "",
        cell("whole_rate", 1),
        cell("share_of_ideal", 2),
        ratio.text(2) if ratio else "",
        cell("cpu_s", 2, 1000),
        cell("peak_rss", 0, 2**-20),
        cell("judge_cpu_s", 1, 1000),
        cell("database_cpu_s", 1, 1000),
        cell("broker_cpu_s", 1, 1000),
        "" if transactions is None else f"{transactions:.1f}",
        cell("updates", 1),
    ]
