"""`report`: documents that summarise many scores."""

from datetime import datetime

import click
from rich.console import Console

from tarsy_scoring.analytics.daily import Selection
from tarsy_scoring.commands.shared import json_option, moment, print_json, run_on_parts

MOST_TOOLS = 50  # the most frequent ones


@click.group(no_args_is_help=True)
def report() -> None:
    """Documents that summarise many scores."""


@report.command("missing-tools")
@click.option("--since", type=moment, help="Only scores completed since (RFC 3339, or a date).")
@click.option("--chain", metavar="NAME", help="Only scores of this chain.")
@json_option
def missing_tools(since: datetime | None, chain: str | None, as_json: bool) -> None:
    """
    Report which tool to build next, with the reasons.

    In Markdown, with the state of each missing tool. Every reason names the score it comes from.
    """
    from tarsy_scoring.missing_tools.report import document_of, make_report, markdown

    selection = Selection(chain=chain, since=since)
    with Console(stderr=True).status("reading ..."):  # prints nothing where stderr is no terminal
        made = run_on_parts(lambda parts: make_report(parts.database, selection, MOST_TOOLS))
    print_json(document_of(made)) if as_json else click.echo(markdown(made), nl=False)
