"""`tools`: what was decided about tools that judges missed, and deciding it."""

from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import click

from tarsy_scoring.commands.shared import asker, moment, plain, print_json, run, settings_of_environment
from tarsy_scoring.missing_tools import decisions, ledger
from tarsy_scoring.missing_tools.decisions import Merge, OneName, SaidState, Saying, UnknownTool
from tarsy_scoring.missing_tools.ledger import Ledger, LedgerEntry
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.records.analytics import Selection
from tarsy_scoring.wiring import open_parts, require_migrated

T = TypeVar("T")

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Machine-readable.")


@click.group(no_args_is_help=True)
def tools() -> None:
    """Tools that judges missed: which names are one tool, and how far each has come."""


@tools.command("list")
@click.option("--since", metavar="TIME", help="Only scores completed since (RFC 3339, or a date).")
@click.option("--chain", metavar="NAME", help="Only scores of this chain.")
@click.option("--limit", type=click.IntRange(1, 2000), default=50, show_default=True, help="Tools.")
@AS_JSON
def list_tools(since: str | None, chain: str | None, limit: int, as_json: bool) -> None:
    """
    What judges missed, the most wanted first, and how far each has come.

    `confirmed` and `still_missed` are measured. `report missing-tools` tells the reasons.
    """
    selection = Selection(chain=chain, since=moment(since) if since else None)
    found: Ledger = _on_database(lambda database: ledger.read_ledger(database, selection, limit=limit))
    if as_json:
        print_json(found)
        return
    for entry in found.entries:
        click.echo(_line(entry))
    if not found.entries:
        click.echo("no judge missed a tool")
    elif found.tools_left_out:
        click.echo(f"{found.tools_left_out:,} more are less wanted than these; raise --limit to see them", err=True)


@tools.command("state")
@click.argument("name")
@click.argument("state", type=click.Choice(["open", "planned", "built"]))
@click.option("--since", metavar="TIME", help="With `built`: there, or better, since then (RFC 3339, or a date).")
@click.option("--note", metavar="TEXT", help="Kept with it, and shown to whoever asks.")
@AS_JSON
def say_state(name: str, state: str, since: str | None, note: str | None, as_json: bool) -> None:
    """
    Say how far a tool has come.

    NAME is any of its names. What was said before is kept, and the last word counts. Whether a tool is still missed is
    measured from the day on which it appeared, or from --since on where that is given with `built`.
    """
    at = moment(since) if since else None
    if at is not None and not decisions.has_come(at):
        raise click.BadParameter("this time has not come yet", param_hint="--since")
    said_state, by = cast(SaidState, state), asker()
    said: Saying = _on_database(
        lambda database: decisions.set_state(database, name, said_state, by=by, since=at, note=note or None)
    )
    if as_json:
        print_json(said)
    else:
        click.echo(f"{plain(said.tool)}: {said.state} since {said.since:%Y-%m-%d %H:%M} UTC")


@tools.command("merge")
@click.argument("name")
@click.argument("into")
@AS_JSON
def merge(name: str, into: str, as_json: bool) -> None:
    """Decide that NAME, in all its spellings, is the same tool as INTO; `tools split NAME` undoes it."""
    _tell_merge(_on_database(lambda database: decisions.merge_name(database, name, into, by=asker())), as_json=as_json)


@tools.command("split")
@click.argument("name")
@AS_JSON
def split(name: str, as_json: bool) -> None:
    """Keep NAME apart from every other tool, which undoes a merge, also one by its spelling."""
    _tell_merge(_on_database(lambda database: decisions.merge_name(database, name, None, by=asker())), as_json=as_json)


def _line(entry: LedgerEntry) -> str:
    sessions = f"{entry.sessions:,} session{'' if entry.sessions == 1 else 's'}"
    points = f"{entry.points_lost:,} point{'' if entry.points_lost == 1 else 's'} lost"
    told = f"{plain(entry.tool_name)}: {sessions}, {points}, {entry.state}"
    names = [plain(s.name) for s in entry.spellings if s.name != entry.tool_name]
    return f"{told} (also {', '.join(names)})" if names else told


def _tell_merge(merge: Merge, *, as_json: bool) -> None:
    if as_json:
        print_json(merge)
    elif merge.name == merge.tool:
        click.echo(f"{plain(merge.name)} is kept apart")
    else:
        click.echo(f"{plain(merge.name)} is the same tool as {plain(merge.tool)}")


def _on_database(work: Callable[[Database], Awaitable[T]]) -> T:
    """Raises: click.ClickException: There is no such tool, or two names are one."""
    settings = settings_of_environment()

    async def on_parts() -> T:
        async with open_parts(settings) as parts:
            await require_migrated(parts.database, wait=False)
            return await work(parts.database)

    try:
        return run(on_parts())
    except UnknownTool:
        raise click.ClickException(
            "no judge has missed a tool of that name; `tarsy-scoring tools list` shows those that they did"
        ) from None
    except OneName as error:
        raise click.ClickException(str(error)) from None
