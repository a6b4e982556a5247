"""`consistency SESSION`: measures how much repeated judgements of one session differ."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID, uuid4

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tarsy_scoring.commands.judging import Judgement, Run, cost_of, follow, run_options, status_of
from tarsy_scoring.commands.shared import (
    json_option,
    print_json,
    require_criteria,
    run,
    session_id,
    settings_of_environment,
)
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.queue.inbox import Order
from tarsy_scoring.statistics.agreement import FlipRate, Spread, bands_of, flip_rate, spread


@click.command()
@click.argument("session", type=session_id)
@click.option("-n", "count", type=click.IntRange(2, 100), default=5, show_default=True, help="How many judgements.")
@click.option("--criteria", metavar="NAME", help="Judge under these criteria instead of the chain's.")
@run_options
@json_option
def consistency(
    session: str, count: int, criteria: str | None, timeout_s: float, run_id: UUID | None, as_json: bool
) -> None:
    """
    Have one session judged several times and show the spread of the judgements.

    These judgements never become the score of the session. Needs the database and a running worker. Exit
    status 1: not every judgement produced a total in time; outstanding ones continue, and the command that
    shows them later is printed.
    """
    settings = settings_of_environment()
    arguments = ["consistency", session, "-n", str(count)]
    if criteria is not None:
        require_criteria(load_criteria(settings.config.criteria_dirs), criteria)
        arguments += ["--criteria", criteria]
    orders = [Order(session, "consistency", criteria, number) for number in range(1, count + 1)]
    ordered = Run(run_id or uuid4(), arguments, orders)
    judgements = list(run(follow(settings, ordered, timeout_s)).values())
    print_json(document_of(ordered.run_id, judgements)) if as_json else _show(session, judgements)
    sys.exit(status_of(judgements))


def _measure(judgements: Sequence[Judgement]) -> tuple[Spread, FlipRate]:
    totals = [j.total_score for j in judgements if j.total_score is not None]
    bands = next((j.bands for j in judgements if j.total_score is not None), None)
    return spread(totals), flip_rate(totals, bands_of(bands or {}))


def document_of(run_id: UUID, judgements: Sequence[Judgement]) -> dict[str, Any]:
    """JSON document: every judgement and their summary."""
    apart, flips = _measure(judgements)
    bound = next((j for j in judgements if j.criteria is not None), judgements[0])
    return {
        "run_id": run_id,
        "session_id": bound.session_id,
        "criteria": bound.criteria,
        "criteria_hash": bound.criteria_hash,
        "judge_fingerprints": sorted({j.judge_fingerprint for j in judgements if j.judge_fingerprint}),
        "outstanding": sum(j.is_outstanding for j in judgements),
        "totals": [j.total_score for j in judgements if j.total_score is not None],
        "spread": asdict(apart),
        "flip_rate": asdict(flips) | {"by_band": [{"band": b, "count": n} for b, n in flips.by_band.items()]},
        "flags": Counter(flag for j in judgements for flag in j.flags),
        "cost": asdict(cost_of(judgements)),
        "judgements": [j.document() for j in judgements],
    }


def _show(session: str, judgements: Sequence[Judgement]) -> None:
    console = Console()
    bound = next((j for j in judgements if j.criteria is not None), judgements[0])
    under = f" under {bound.criteria} {(bound.criteria_hash or '')[:12]}" if bound.criteria else ""
    console.print(Text.assemble((session, "bold"), f"{under}: {len(judgements)} judgements"), soft_wrap=True)
    apart, flips = _measure(judgements)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    totals = sorted(j.total_score for j in judgements if j.total_score is not None)
    table.add_row("totals", " ".join(map(str, totals)) or "none")
    if apart.mean is not None and apart.width is not None:
        table.add_row("spread", f"{apart.width:g} ({apart.lowest:g} to {apart.highest:g})")
        table.add_row("median, mean", f"{apart.median:g}, {apart.mean:.1f}")
        table.add_row("standard deviation", f"{apart.standard_deviation:.1f}")
    else:
        table.add_row("spread", f"unknown: {apart.reason}")
    bands = ", ".join(f"{band or 'between bands'} {n}" for band, n in flips.by_band.items())
    rate = f"unknown: {flips.reason}" if flips.rate is None else f"{flips.rate:.0%} of pairs ({bands})"
    table.add_row("band flips", Text(rate))
    flags = Counter(flag for j in judgements for flag in j.flags)
    table.add_row("flags", ", ".join(f"{flag} {n}" for flag, n in flags.most_common()) or "none")
    table.add_row("cost", str(cost_of(judgements)))
    console.print(table)
    for j in judgements:
        if j.total_score is None and not j.is_outstanding:
            click.echo(f"no total: {j.error_kind or 'the judge is off for this chain'}")
    if len({j.judge_fingerprint for j in judgements if j.judge_fingerprint}) > 1:
        click.echo("the judgements come from more than one judge, so their differences are more than spread")
