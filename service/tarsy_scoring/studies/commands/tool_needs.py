"""`tool-needs`: a model reads what scores say about missing tools."""

import sys
from datetime import datetime

import click
from rich.console import Console

from tarsy_scoring.analytics.daily import Selection
from tarsy_scoring.commands.report import chain_option, since_option
from tarsy_scoring.commands.shared import (
    FAILED,
    FiniteRange,
    json_option,
    may_spend,
    print_json,
    run_on_parts,
    settings_of_environment,
    spend_option,
    usd,
)
from tarsy_scoring.judge.ask.client import create_clients
from tarsy_scoring.studies.tool_needs import ChainNeeds, read_needs
from tarsy_scoring.telemetry.stopping import closing
from tarsy_scoring.wiring import Parts


@click.command()
@since_option
@chain_option
@click.option(
    "--max-usd",
    type=FiniteRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Upper limit of the cost of all calls.",
)
@click.option(
    "--max-scores",
    type=click.IntRange(1, 10_000),
    default=500,
    show_default=True,
    help="Of each chain read at most this many scores, those that lost most points first.",
)
@spend_option
@json_option
def tool_needs(
    since: datetime | None, chain: str | None, max_usd: float, max_scores: int, as_json: bool
) -> None:
    """
    Let a model read which tools scores miss, with quotes.

    In Markdown. For each chain the first provider with prices gets one question with the analyses that fit
    the window, within the chain's pauses and budget, the fleet's limits and --max-usd. A statement counts
    only if the score that it names contains the quotation. Exit status 1: there were analyses, and none was
    read.
    """
    from tarsy_scoring.missing_tools.report import render_markdown

    settings = settings_of_environment()
    click.echo(f"one question for each chain, together at most {usd(max_usd)}", err=True)
    may_spend()

    async def work(parts: Parts) -> list[ChainNeeds]:
        clients = create_clients(settings)
        async with closing(*clients.values()):
            return await read_needs(
                parts.database,
                parts.limits,
                settings,
                clients,
                Selection(chain=chain, since=since),
                max_usd=max_usd,
                most_notes=max_scores,
            )

    with Console(stderr=True).status("reading ..."):  # prints nothing where stderr is no terminal
        found = run_on_parts(work, settings)
    if as_json:
        print_json({"chains": found})
    else:
        click.echo(render_markdown("studies", "tool_needs.md.jinja", chains=found), nl=False)
    sys.exit(FAILED if found and not any(one.read for one in found) else 0)
