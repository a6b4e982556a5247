"""`erase`: removes sessions from every table, or a person's name, after showing the rows."""

from collections.abc import Mapping

import click

from tarsy_scoring.commands.shared import (
    asker,
    audited,
    json_option,
    not_blank,
    plain,
    print_either,
    progress_bar,
    run_on_parts,
    sessions_argument,
    yes_option,
)
from tarsy_scoring.memory.tables import forget
from tarsy_scoring.retention import erasure, persons
from tarsy_scoring.retention.erasure import Inventory, inventory
from tarsy_scoring.wiring import Parts

ADVICE = "nothing was erased; add --yes to erase"


@click.command()
@sessions_argument(required=False)
@click.option("--person", metavar="NAME", type=not_blank, help="Replace this person's name, instead.")
@yes_option
@json_option
def erase(sessions: list[str], person: str | None, yes: bool, as_json: bool) -> None:
    """
    Remove sessions from every table, with scores and requests.

    Replies and events are removed, too. A running score is cancelled first, and the worker writes nothing
    more. An old event that Kafka redelivers does not bring a session back, because the hash of the identity
    stays. A new request does, if the source still has the session. The erasure itself is recorded: when, by
    whom, and the SHA-256 of the session id.

    With --person the name of a reviewer or requester, as pages and `requested_by` show it, is replaced by a
    random pseudonym in every table: labels, changes, requests and decisions stay. Texts that people wrote
    stay as they are.

    Copies in Kafka, logs and backups expire with their own retention. Scores written back to TARSy belong to
    TARSy; lessons in TARSy's memory are deleted where the role may delete there.
    """
    if (person is not None) == bool(sessions):
        raise click.UsageError("name sessions, or a person with --person")
    if person is not None:
        _erase_person(person, yes=yes, as_json=as_json)
        return

    memories: dict[str, str | None] = {}

    async def work(parts: Parts) -> dict[str, Inventory]:
        found = {}
        with progress_bar("erasing" if yes else "counting", len(sessions)) as show:
            for session_id in sessions:
                if yes:
                    found[session_id] = await erasure.erase(
                        parts.database, parts.leases, session_id, by=asker()
                    )
                    memories[session_id] = await forget(parts.settings, session_id)
                else:
                    found[session_id] = await inventory(parts.database, session_id)
                show(len(found))
        return found

    found = run_on_parts(work)
    documents = [
        {
            "session_id": session_id,
            "erased": yes and not of.is_empty,
            "rows": of.rows,
            "open_scores": of.open_scores,
            "tarsy_memory": memories.get(session_id),
        }
        for session_id, of in found.items()
    ]
    lines = []
    for session_id, of in found.items():
        is_running = of.open_scores and not yes
        more = f"; {of.open_scores} pending or running, to be cancelled" if is_running else ""
        lines.append(
            f"{session_id}: {'erased: ' if yes and not of.is_empty else ''}{_in_words(of.rows)}{more}"
        )
        if words := memories.get(session_id):
            lines.append(f"  TARSy's memory: {words}")
    if not yes and any(not of.is_empty for of in found.values()):
        lines.append(ADVICE)
    print_either({"sessions": documents}, lines, as_json=as_json)


def _in_words(rows: Mapping[str, int]) -> str:
    return ", ".join(f"{n} in {table}" for table, n in rows.items() if n) or "no rows"


def _erase_person(name: str, *, yes: bool, as_json: bool) -> None:
    async def work(parts: Parts) -> tuple[str | None, dict[str, int]]:
        with progress_bar("erasing" if yes else "counting", len(persons.PLACES)) as show:
            if yes:
                await audited(parts.database, "erase_person")
                return await persons.pseudonymise(parts.database, name, show)
            return None, await persons.count(parts.database, name, show)

    pseudonym, rows = run_on_parts(work)
    has_rows = any(rows.values())
    document = {"person": name, "pseudonym": pseudonym, "erased": yes and has_rows, "rows": rows}
    line = f"{plain(name)}: {f'now {pseudonym}: ' if pseudonym else ''}{_in_words(rows)}"
    print_either(document, [line, ADVICE] if has_rows and not yes else [line], as_json=as_json)
