"""Reports results of the benchmark: a table for people, JSON for programs, and whether targets are met."""

import platform
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.scenarios import TURNS, Result

# Targets of the service: share of the ideal at 2 s per turn, share of the bare client at 200 ms, memory.
LEAST_SHARE_OF_IDEAL, LEAST_SHARE_OF_BARE, MOST_RSS = 0.95, 0.6, 300 * 2**20
TARGET_SLOTS = 200
NOISY = 0.05  # share of the machine that bystanders may use before the numbers are doubtful


def ratio_to_bare(result: Result, results: Sequence[Result]) -> float | None:
    """Rate divided by the bare client's rate at the same latency and slots; None if it was not measured."""
    asked = result.scenario
    for other in results:
        its = other.scenario
        if its.kind == "bare" and (its.latency_s, its.slots) == (asked.latency_s, asked.slots) and its != asked:
            return result.rate / other.rate
    return None


def as_json(results: Sequence[Result], about: dict[str, Any]) -> dict[str, Any]:
    """All results as JSON; CPU in seconds per score, memory in bytes, rates in scores per second."""
    rows = []
    for r in results:
        row = asdict(r) | {
            "name": r.scenario.name,
            "rate": r.rate,
            "whole_rate": r.whole.rate,
            "steady_rate": r.steady.rate if r.steady else None,
            "ideal": r.scenario.ideal,
            "share_of_ideal": r.share_of_ideal,
            "ratio_to_bare": ratio_to_bare(r, results),
            "judge_calls_per_score": r.judge_calls / r.completed,
        }
        rows.append(row)
    return {**about, "machine": machine(), "results": rows, "targets": targets(results)}


def machine() -> dict[str, Any]:
    """Hardware and software of the measurement."""
    return {
        "cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
    }


def targets(results: Sequence[Result]) -> dict[str, dict[str, Any]]:
    """Targets at 200 slots that these results can check: the value reached, and whether it is met."""
    found: dict[str, dict[str, Any]] = {}
    of_service = [r for r in results if r.scenario.kind == "service" and r.scenario.slots == TARGET_SLOTS]
    for r in of_service:
        if r.scenario.latency_s == 2.0 and r.share_of_ideal is not None:
            found["share_of_ideal_at_2s"] = _held(r.share_of_ideal, r.share_of_ideal >= LEAST_SHARE_OF_IDEAL)
        share = ratio_to_bare(r, results)
        if r.scenario.latency_s == 0.2 and share is not None:
            found["ratio_to_bare_at_200ms"] = _held(share, share >= LEAST_SHARE_OF_BARE)
    if of_service:
        peak = max(r.peak_rss for r in of_service)
        found["peak_rss_bytes"] = _held(peak, peak < MOST_RSS)
    return found


def _held(value: float, is_met: bool) -> dict[str, Any]:
    return {"value": value, "is_met": is_met}


def print_table(console: Console, results: Sequence[Result], about: dict[str, Any]) -> None:
    """Print the table, the targets, and the results that other load or extra calls make doubtful."""
    at = machine()
    context = f"{about['context_bytes'] // 1000} KB per context"
    title = f"{at['cores']} cores, Python {at['python']}, {about['broker']}, {context}"
    table = Table(title=title, title_justify="left", caption_justify="left", caption=_CAPTION)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for r in results:
        table.add_row(*_cells(r, ratio_to_bare(r, results)))
    console.print(table)
    for name, target in targets(results).items():
        value = f"{target['value'] / 2**20:.0f} MB" if name.endswith("bytes") else f"{target['value']:.2f}"
        console.print(f"  {'reached' if target['is_met'] else '[bold]MISSED[/]'}  {name}: {value}", highlight=False)
    for r in results:
        if r.bystanders_share > NOISY:
            console.print(f"  noisy    {r.scenario.name}: others used {r.bystanders_share:.0%} of the machine")
        if r.scenario.latency_s is not None and r.judge_calls != TURNS * r.completed:
            console.print(f"  odd      {r.scenario.name}: {r.judge_calls} calls of the judge for {r.completed} scores")


_HEADINGS = ("", "turn", "scores", "/s", "/s all", "of ideal", "of bare", "CPU ms", "MB", "judge", "pg", "broker")
_CAPTION = (
    "/s: scores per second without ramp and tail; all: from first claim to last completion. CPU ms per score and "
    "peak MB of the measured process; judge, pg, broker: CPU ms per score of the processes beside it."
)


def _cells(r: Result, of_bare: float | None) -> list[str]:
    latency = r.scenario.latency_s
    beside = [f"{1000 * r.others_cpu_s[n]:.1f}" if n in r.others_cpu_s else "" for n in ("judge", "database", "broker")]
    return [
        r.scenario.name,
        "none" if latency is None else f"{latency:g} s",
        str(r.completed),
        f"{r.rate:.1f}",
        f"{r.whole.rate:.1f}",
        "" if r.share_of_ideal is None else f"{r.share_of_ideal:.2f}",
        "" if of_bare is None else f"{of_bare:.2f}",
        f"{1000 * r.cpu_s:.2f}",
        f"{r.peak_rss / 2**20:.0f}",
        *beside,
    ]
