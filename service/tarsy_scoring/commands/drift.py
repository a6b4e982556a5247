"""`report drift`: did the agents change, or the judge?"""

import click

from tarsy_scoring.commands.shared import moment, print_json, run, settings_of_environment
from tarsy_scoring.drift.report import DriftReport, document_of, markdown, read_report
from tarsy_scoring.wiring import open_parts, require_migrated


@click.command("drift")
@click.option("--chain", metavar="NAME", help="Only this chain, and how things stand with it.")
@click.option("--since", metavar="TIME", help="Only what was found since (RFC 3339, or a date).")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="Findings.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def drift(chain: str | None, since: str | None, limit: int, as_json: bool) -> None:
    """
    Whether scores changed because the agents did or because the judge did, in Markdown.

    Shows what workers found: they look within five minutes after a new judge has judged the anchors, again when there
    are enough scores by it, and once a day under one judge. See `tarsy-scoring anchors`.
    """
    settings = settings_of_environment()
    earliest = moment(since) if since else None

    async def work() -> DriftReport:
        async with open_parts(settings) as parts:
            await require_migrated(parts.database, wait=False)
            return await read_report(parts.inbox, chain, since=earliest, limit=limit)

    found = run(work())
    if as_json:
        print_json(document_of(found))
    else:
        click.echo(markdown(found), nl=False)
