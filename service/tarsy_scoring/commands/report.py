"""`report`: what many scores say together, as a document for those who can change it."""

import contextlib
import sys
from dataclasses import replace
from typing import cast

import click
from click.core import ParameterSource
from rich.console import Console

from tarsy_scoring.commands.drift import drift
from tarsy_scoring.commands.shared import FAILED, FiniteRange, moment, print_json, run, settings_of_environment
from tarsy_scoring.judge.llm import create_clients
from tarsy_scoring.missing_tools.report import ToolReport, document_of, left_out_in_words, make_report, markdown
from tarsy_scoring.missing_tools.report_judge import Analyst
from tarsy_scoring.records.analytics import Selection, ToolSort
from tarsy_scoring.wiring import open_parts, require_migrated


@click.group(no_args_is_help=True)
def report() -> None:
    """Documents out of many scores."""


report.add_command(drift)


@report.command("missing-tools")
@click.option("--since", metavar="TIME", help="Only scores completed since (RFC 3339, or a date).")
@click.option("--chain", metavar="NAME", help="Only scores of this chain.")
@click.option(
    "--sort",
    type=click.Choice(["sessions", "points_lost"]),
    default="sessions",
    show_default=True,
    help="What makes a tool the most wanted.",
)
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="Tools.")
@click.option("--with-judge", is_flag=True, help="Have the judge's model put together what scores say in free text.")
@click.option(
    "--max-usd",
    type=FiniteRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="With --with-judge: its calls cost at most this.",
)
@click.option(
    "--max-scores",
    type=click.IntRange(1, 100_000),
    default=500,
    show_default=True,
    help="With --with-judge: read at most so many, those that lost most first.",
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def missing_tools(
    since: str | None,
    chain: str | None,
    sort: str,
    limit: int,
    with_judge: bool,
    max_usd: float,
    max_scores: int,
    as_json: bool,
) -> None:
    """
    Which tool to build next: what judges missed, how far each has come, and why, in Markdown.

    Every reason comes with the id of the score that it stands in. Whether a tool that was built is still missed is
    measured: what judges ask of sessions whose agents have it, against what they asked before.

    No model is asked, unless --with-judge: then the first provider of each chain reads what judges wrote about missing
    tools in that chain, within its window, the chain's pauses and budget, the fleet's limits and --max-usd. What it
    says counts where a quote for it is found in the score that it names. Chains without a judge are not read; what was
    not read is told, also on stderr. Exit status 1: nothing could be read; the rest of the report is there.
    """
    for name in () if with_judge else ("max_usd", "max_scores"):
        if click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} goes with --with-judge: no model is asked without it")
    settings = settings_of_environment()
    selection = Selection(chain=chain, since=moment(since) if since else None)
    clients = create_clients(settings) if with_judge else {}

    async def work() -> ToolReport:
        try:
            async with open_parts(settings) as parts:
                await require_migrated(parts.database, wait=False)
                made = await make_report(parts.database, selection, cast(ToolSort, sort), limit)
                if not with_judge:
                    return made
                analyst = Analyst(parts.database, parts.limits, settings, clients, max_usd, max_scores)
                return replace(made, reading=await analyst.read(selection))
        finally:
            for client in clients.values():
                await client.close()

    console = Console(stderr=True)
    with console.status("reading ...") if with_judge and console.is_terminal else contextlib.nullcontext():
        made = run(work())
    for line in left_out_in_words(made):
        click.echo(line, err=True)
    if as_json:
        print_json(document_of(made))
    else:
        click.echo(markdown(made), nl=False)
    sys.exit(FAILED if made.has_failed else 0)
