"""`report drift`: did the agents change, or the judge?"""

import click

from tarsy_scoring.commands.shared import moment, print_json, run, settings_of_environment
from tarsy_scoring.drift.report import DriftReport, markdown, read_report
from tarsy_scoring.wiring import open_migrated_parts


@click.command("drift")
@click.option("--chain", metavar="NAME", help="Only this chain, with its current state.")
@click.option("--since", metavar="TIME", help="Only findings since then (RFC 3339, or a date).")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="Number of findings.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def drift(chain: str | None, since: str | None, limit: int, as_json: bool) -> None:
    """
    Report in Markdown whether scores changed because of the agents or because of the judge.

    Shows the findings of workers. They check within five minutes after a new judge has judged the anchors,
    again when it has given enough scores, and once a day under one judge. See `tarsy-scoring anchors`.
    """
    settings = settings_of_environment()
    earliest = moment(since) if since else None

    async def work() -> DriftReport:
        async with open_migrated_parts(settings) as parts:
            return await read_report(parts.inbox, chain, since=earliest, limit=limit)

    found = run(work())
    if as_json:
        print_json(found)
    else:
        click.echo(markdown(found), nl=False)
