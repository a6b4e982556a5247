"""`recount`: counts all analytics days again."""

import click

from tarsy_scoring.analytics.recount import mark_all, recount_all
from tarsy_scoring.commands.shared import counted, json_option, print_either, run_on_parts
from tarsy_scoring.wiring import Parts


@click.command()
@json_option
def recount(as_json: bool) -> None:
    """
    Count all days of the analytics again from the stored scores.

    You need it after a restore of single tables, or changes of scores by hand: workers keep the counts up to
    date. Safe beside running workers, which take over what an interrupted run leaves.
    """

    async def work(parts: Parts) -> int:
        await mark_all(parts.database)
        return await recount_all(parts.database)

    days = run_on_parts(work)
    print_either({"days": days}, [f"counted {counted(days, 'day')} again"], as_json=as_json)
