"""`report`: documents that summarise many scores."""

from dataclasses import asdict
from datetime import datetime

import click
from rich.console import Console

from tarsy_scoring.analytics.approaches import read_approaches
from tarsy_scoring.analytics.daily import Selection
from tarsy_scoring.commands.shared import json_option, print_json, print_text, run_on_parts, time_option
from tarsy_scoring.labels.disagreements import read_disagreements

MOST_APPROACHES, MOST_TOOLS = 20, 50  # the most frequent ones

since_option = click.option(
    "--since", type=time_option, metavar="TIME", help="Only scores completed since (RFC 3339, or a date)."
)
chain_option = click.option("--chain", metavar="NAME", help="Only scores of this chain.")


@click.group(no_args_is_help=True)
def report() -> None:
    """Documents that summarise many scores."""


@report.command("approaches")
@since_option
@chain_option
@json_option
def approaches(since: datetime | None, chain: str | None, as_json: bool) -> None:
    """
    Report which better approaches judges named.

    Approaches with similar names and steps are one. Only criteria such as investigation-structured ask for
    approaches. The newest 2,000 of the period are compared, and the 20 most frequent printed.
    """
    selection = Selection(chain=chain, since=since)
    found = run_on_parts(lambda parts: read_approaches(parts.database, selection, MOST_APPROACHES))
    document = {"approaches": found}
    print_json(document) if as_json else print_text("approaches.txt", document)


@report.command("disagreements")
@click.option("--since", type=time_option, help="Only sessions labelled since (RFC 3339, or a date).")
@chain_option
@json_option
def disagreements(since: datetime | None, chain: str | None, as_json: bool) -> None:
    """
    Report where judge and people say the opposite.

    Lists the sessions, newest label first, with both reasons, and counts them by chain and failure tag.
    """
    document = asdict(run_on_parts(lambda parts: read_disagreements(parts.database, chain, since=since)))
    print_json(document) if as_json else print_text("disagreements.txt", document)


@report.command("missing-tools")
@since_option
@chain_option
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
