"""`tools`: lists missing tools and records decisions about them."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeVar, cast

import click

from tarsy_scoring.analytics.daily import Selection
from tarsy_scoring.commands.shared import asker, counted, json_option, moment, print_json, run_on_parts
from tarsy_scoring.missing_tools import decisions, ledger
from tarsy_scoring.missing_tools.decisions import Merge, SameTool, ToolState, ToolStateName, UnknownTool
from tarsy_scoring.missing_tools.ledger import Ledger, WantedTool
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.timeline.text import one_line

T = TypeVar("T")


@click.group(no_args_is_help=True)
def tools() -> None:
    """Missing tools: which names are one tool, and their states."""


@tools.command("list")
@click.option(
    "--since", type=moment, metavar="TIME", help="Only scores completed since (RFC 3339, or a date)."
)
@click.option("--chain", metavar="NAME", help="Only scores of this chain.")
@click.option("--limit", type=click.IntRange(1, 2000), default=50, show_default=True, help="Number of tools.")
@json_option
def list_tools(since: datetime | None, chain: str | None, limit: int, as_json: bool) -> None:
    """
    List missing tools and their state, most wanted first.

    `report missing-tools` gives the reasons.
    """
    selection = Selection(chain=chain, since=since)
    found: Ledger = _on_database(lambda database: ledger.read_ledger(database, selection, limit=limit))
    if as_json:
        print_json(found)
        return
    for entry in found.tools:
        click.echo(_line(entry))
    if not found.tools:
        click.echo("no score names a missing tool")
    elif found.tools_left_out:
        click.echo(
            f"{found.tools_left_out:,} more are less wanted than these; raise --limit to see them", err=True
        )


@tools.command("state")
@click.argument("name")
@click.argument("state", type=click.Choice(["open", "planned", "built"]))
@click.option(
    "--since",
    type=moment,
    metavar="TIME",
    help="Start of the state (RFC 3339, or a date); default: now.",
)
@click.option("--note", metavar="TEXT", help="Stored with the decision and shown beside it.")
@json_option
def say_state(name: str, state: str, since: datetime | None, note: str | None, as_json: bool) -> None:
    """
    Record a tool's state.

    NAME is any of its names. Earlier decisions are kept; the latest counts.
    """
    if since is not None and not decisions.has_come(since):
        raise click.BadParameter("this time is in the future", param_hint="--since")
    said_state, by = cast(ToolStateName, state), asker()
    said: ToolState = _on_database(
        lambda database: decisions.set_state(
            database, name, said_state, by=by, since=since, note=note or None
        )
    )
    if as_json:
        print_json(said)
    else:
        click.echo(f"{one_line(said.tool)}: {said.state} since {said.since:%Y-%m-%d %H:%M} UTC")


@tools.command("merge")
@click.argument("name")
@click.argument("into")
@json_option
def merge(name: str, into: str, as_json: bool) -> None:
    """Record that NAME, in all its spellings, is the same tool as INTO. `tools split NAME` undoes it."""
    _print_merge(
        _on_database(lambda database: decisions.merge_name(database, name, into, by=asker())), as_json=as_json
    )


@tools.command("split")
@click.argument("name")
@json_option
def split(name: str, as_json: bool) -> None:
    """Keep NAME apart from every other tool. Undoes a merge, also one made by spelling."""
    _print_merge(
        _on_database(lambda database: decisions.merge_name(database, name, None, by=asker())), as_json=as_json
    )


def _line(entry: WantedTool) -> str:
    figures = f"{counted(entry.sessions, 'session')}, {counted(entry.points_lost, 'point')} lost"
    summary = f"{one_line(entry.tool_name)}: {figures}, {entry.state}"
    names = [one_line(s.name) for s in entry.spellings if s.name != entry.tool_name]
    return f"{summary} (also {', '.join(names)})" if names else summary


def _print_merge(merge: Merge, *, as_json: bool) -> None:
    if as_json:
        print_json(merge)
    elif merge.name == merge.tool:
        click.echo(f"{one_line(merge.name)} is kept apart")
    else:
        click.echo(f"{one_line(merge.name)} is the same tool as {one_line(merge.tool)}")


def _on_database(work: Callable[[Database], Awaitable[T]]) -> T:
    """
    Run `work` on the migrated database.

    Raises:
        click.ClickException: No score names the tool, or both names are the same tool.
    """
    try:
        return run_on_parts(lambda parts: work(parts.database))
    except UnknownTool:
        raise click.ClickException(
            "no score names a missing tool of that name; `tarsy-scoring tools list` lists them"
        ) from None
    except SameTool as error:
        raise click.ClickException(str(error)) from None
