"""`rollups`: counts the daily rollups again that pages about many scores read."""

from typing import TYPE_CHECKING

import click

from tarsy_scoring.analytics.rollup_keeping import Rebuilt, RollupKeeper
from tarsy_scoring.commands.shared import counted, json_option, print_json, progress_bar, run_on_parts

if TYPE_CHECKING:
    from tarsy_scoring.wiring import Parts


@click.group()
def rollups() -> None:
    """Daily counts of scores that pages and reports read."""


@rollups.command()
@json_option
def rebuild(as_json: bool) -> None:
    """
    Count all days again from the stored scores.

    Needed only after triggers were disabled, for example by a restore of single tables: workers keep the
    counts up to date, and fill them after an upgrade. Safe beside running workers, and pages stay exact
    meanwhile. Each day is a transaction of its own; an interrupted run leaves exact counts, and the next one
    begins anew.
    """

    async def work(parts: "Parts") -> Rebuilt:
        keeper = RollupKeeper(parts.database)
        with progress_bar("counting days", await keeper.days()) as show:
            return await keeper.rebuild(show)

    found = run_on_parts(work)
    if as_json:
        print_json(found)
        return
    click.echo(f"counted {counted(found.days, 'day')} again")
