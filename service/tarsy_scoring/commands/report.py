"""`report`: documents that summarise many scores."""

import sys
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, cast

import click
from click.core import ParameterSource
from rich.console import Console

from tarsy_scoring.analytics.analytics import Selection, ToolSort
from tarsy_scoring.analytics.approaches import MOST_READ, read_approaches
from tarsy_scoring.commands.completion import chain_names
from tarsy_scoring.commands.shared import (
    FAILED,
    FiniteRange,
    json_option,
    moment,
    print_json,
    print_text,
    run_on_parts,
    settings_of_environment,
)
from tarsy_scoring.judge.ask.client import create_clients
from tarsy_scoring.missing_tools.report import (
    ToolReport,
    document_of,
    left_out_in_words,
    make_report,
    markdown,
)
from tarsy_scoring.missing_tools.report_judge import read_analyses

if TYPE_CHECKING:
    from tarsy_scoring.wiring import Parts


@click.group(no_args_is_help=True)
def report() -> None:
    """Documents that summarise many scores."""


@report.command("approaches")
@click.option(
    "--since", type=moment, metavar="TIME", help="Only scores completed since (RFC 3339, or a date)."
)
@click.option("--chain", shell_complete=chain_names, metavar="NAME", help="Only scores of this chain.")
@click.option(
    "--limit", type=click.IntRange(1, 500), default=20, show_default=True, help="Number of approaches."
)
@json_option
def approaches(since: datetime | None, chain: str | None, limit: int, as_json: bool) -> None:
    """
    Report which better approaches judges named.

    Approaches with similar names and steps are one. Only criteria such as investigation-structured ask for
    approaches. The newest 2,000 of the period are compared.
    """
    selection = Selection(chain=chain, since=since)
    found = run_on_parts(lambda parts: read_approaches(parts.database, selection, limit))
    if as_json:
        print_json(found)
        return
    print_text("approaches.txt", {"approaches": found.approaches})
    if found.approaches_left_out:
        click.echo(
            f"{found.approaches_left_out:,} rarer ones are left out; raise --limit to see them", err=True
        )
    if found.is_cut:
        click.echo(
            f"only the newest {MOST_READ:,} approaches were compared; name a chain or a later --since",
            err=True,
        )


@report.command("missing-tools")
@click.option(
    "--since",
    type=moment,
    metavar="TIME",
    help="Only scores completed since (RFC 3339, or a date). Default: all time; the page shows 90 days.",
)
@click.option("--chain", shell_complete=chain_names, metavar="NAME", help="Only scores of this chain.")
@click.option(
    "--sort",
    type=click.Choice(["sessions", "points_lost"]),
    default="sessions",
    show_default=True,
    help="Ranking of the tools.",
)
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="Number of tools.")
@click.option("--with-judge", is_flag=True, help="Let the judge's model summarise the free text of scores.")
@click.option(
    "--max-usd",
    type=FiniteRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="With --with-judge: upper limit of the cost of its calls.",
)
@click.option(
    "--max-scores",
    type=click.IntRange(1, 100_000),
    default=500,
    show_default=True,
    help="With --with-judge: read at most this many scores, those that lost most points first.",
)
@json_option
def missing_tools(
    since: datetime | None,
    chain: str | None,
    sort: str,
    limit: int,
    with_judge: bool,
    max_usd: float,
    max_scores: int,
    as_json: bool,
) -> None:
    """
    Report which tool to build next, with the reasons.

    In Markdown, with the state of each missing tool. Every reason names the score it comes from. Whether a
    built tool is still missed is measured: the demand in sessions whose agents have it, against the demand
    before.

    Only --with-judge calls a model: the first provider of each chain with prices reads what judges wrote
    about missing tools in that chain, within its window, the chain's pauses and budget, the fleet's limits
    and --max-usd. A statement counts only if its quotation is found in the score it names. Chains without a
    judge are skipped. The report and stderr list scores that were not read. Exit status 1: no score could be
    read; the rest of the report is printed.
    """
    for name in () if with_judge else ("max_usd", "max_scores"):
        if click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"--{name.replace('_', '-')} needs --with-judge: without it no model is called"
            )
    settings = settings_of_environment()
    selection = Selection(chain=chain, since=since)

    async def work(parts: "Parts") -> ToolReport:
        made = await make_report(parts.database, selection, cast(ToolSort, sort), limit)
        if not with_judge:
            return made
        clients = create_clients(settings)
        try:
            reading = await read_analyses(
                parts.database,
                parts.limits,
                settings,
                clients,
                selection,
                max_usd=max_usd,
                most_notes=max_scores,
            )
            return replace(made, reading=reading)
        finally:
            for client in clients.values():
                await client.close()

    with Console(stderr=True).status("reading ..."):  # prints nothing where stderr is no terminal
        made = run_on_parts(work, settings)
    for line in left_out_in_words(made):
        click.echo(line, err=True)
    if as_json:
        print_json(document_of(made))
    else:
        click.echo(markdown(made), nl=False)
    sys.exit(FAILED if made.has_failed else 0)
