"""`erase`: removes sessions from every table, after showing their rows."""

from collections.abc import Sequence
from typing import Any

import click

from tarsy_scoring.commands.shared import asker, print_json, progress_bar, run, session_ids, settings_of_environment
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.records.erasure import Inventory, erase, inventory
from tarsy_scoring.wiring import open_migrated_parts


@click.command("erase")
@click.argument("sessions", nargs=-1, required=True, metavar="SESSION...")
@click.option("--yes", is_flag=True, help="Erase; without it, the rows are only counted.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def erase_command(sessions: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """
    Remove sessions from every table, with their scores, replies, events and requests.

    A running score is cancelled first, and its worker writes nothing more. An old event that Kafka redelivers
    does not bring a session back, because the hash of its identity stays. A new request does, if the source
    still has the session. The erasure itself is recorded: when, by whom, and the SHA-256 of the session id.

    Copies in Kafka, logs and backups expire with their own retention. Scores written back to TARSy belong to
    TARSy.
    """
    settings = settings_of_environment()
    named = session_ids(sessions)
    found = run(_erase(settings, named) if yes else _look(settings, named))
    if as_json:
        print_json({"sessions": [_document(s, found[s], is_erased=yes) for s in named]})
        return
    for session_id in named:
        click.echo(f"{session_id}: {_describe(found[session_id], is_erased=yes)}")
    if not yes and any(not i.is_empty for i in found.values()):
        click.echo("nothing was erased; add --yes to erase")


async def _look(settings: Settings, sessions: Sequence[str]) -> dict[str, Inventory]:
    async with open_migrated_parts(settings) as parts:
        return {s: await inventory(parts.database, s) for s in sessions}


async def _erase(settings: Settings, sessions: Sequence[str]) -> dict[str, Inventory]:
    removed = {}
    async with open_migrated_parts(settings) as parts:
        with progress_bar("erasing", len(sessions)) as show:
            for session_id in sessions:
                removed[session_id] = await erase(parts.database, parts.leases, session_id, by=asker())
                show(len(removed))
    return removed


def _describe(found: Inventory, *, is_erased: bool) -> str:
    if found.is_empty:
        return "no rows"
    rows = ", ".join(f"{n} in {table}" for table, n in found.rows.items() if n)
    if is_erased:
        return f"erased: {rows}"
    return rows + (f"; {found.open_scores} pending or running, to be cancelled" if found.open_scores else "")


def _document(session_id: str, found: Inventory, *, is_erased: bool) -> dict[str, Any]:
    return {
        "session_id": session_id,
        "erased": is_erased and not found.is_empty,
        "rows": dict(found.rows),
        "open_scores": found.open_scores,
    }
