"""`rescore`: ask for sessions to be scored again."""

import os
import uuid

import click

from tarsy_scoring.admission import Priority, Request
from tarsy_scoring.app import open_parts, require_migrated
from tarsy_scoring.commands.shared import moment, print_json, run, settings_of_environment
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.timeline.model import SESSION_ID_PATTERN


@click.command()
@click.argument("sessions", nargs=-1, metavar="[SESSION]...")
@click.option("--failed", is_flag=True, help="All sessions whose newest score failed or timed out.")
@click.option("--error-kind", metavar="KIND", help="With --failed: only those that failed like this.")
@click.option("--since", metavar="TIME", help="Only scores made since then (RFC 3339, or a date).")
@click.option("--chain", metavar="NAME", help="Only sessions of this chain.")
@click.option("--criteria", metavar="NAME", help="Score under these criteria instead of the chain's.")
@click.option("--reason", metavar="TEXT", help="Kept with the request.")
@click.option("--yes", is_flag=True, help="Really do it; without it, a selection is only counted.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def rescore(
    sessions: tuple[str, ...],
    failed: bool,
    error_kind: str | None,
    since: str | None,
    chain: str | None,
    criteria: str | None,
    reason: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """
    Ask for sessions to be scored again: by name, or a selection.

    Named sessions are scored before everything else, a selection after everything else. Without --yes a
    selection is only counted. Needs the database; the workers do the rest.
    """
    settings = settings_of_environment()
    is_selection = failed or since is not None
    if bool(sessions) == is_selection:
        raise click.UsageError("name sessions, or select them with --failed or --since")
    if error_kind and not failed:
        raise click.UsageError("--error-kind goes with --failed")
    for name in sessions:
        if not SESSION_ID_PATTERN.fullmatch(name):
            raise click.BadParameter(f"{name!r} is not a session id", param_hint="SESSION")
    registry = load_criteria(settings.config.criteria_dirs)
    if criteria is not None and criteria not in registry:
        known = ", ".join(sorted(c.name for c in registry))
        raise click.BadParameter(f"no criteria are called {criteria!r} (known: {known})", param_hint="--criteria")
    earliest = moment(since) if since else None

    async def work() -> tuple[list[str], dict[str, int]]:
        async with open_parts(settings) as parts:
            await require_migrated(parts.database, wait=False)
            chosen = list(dict.fromkeys(sessions))
            if failed:
                chosen = await parts.reader.failed_sessions(error_kind, chain, earliest)
            elif is_selection:
                chosen = await parts.reader.scored_sessions(chain, earliest)
            if is_selection and not yes:
                return chosen, {}
            priority = Priority.BULK if is_selection else Priority.PEOPLE
            requests = [
                Request(
                    request_id=uuid.uuid4(),
                    session_id=s,
                    source="cli",
                    requested_by=os.environ.get("USER") or "cli",
                    force=True,
                    criteria=criteria,
                    reason=reason,
                    priority=priority,
                )
                for s in chosen
            ]
            counts: dict[str, int] = {}
            for start in range(0, len(requests), 500):
                for disposition in (await parts.inbox.accept(requests[start : start + 500])).values():
                    counts[disposition] = counts.get(disposition, 0) + 1
            return chosen, counts

    chosen, counts = run(work())
    if as_json:
        print_json({"sessions": len(chosen), "dispositions": counts, "done": bool(counts) or not chosen})
    elif is_selection and not yes:
        click.echo(f"{len(chosen)} sessions would be scored again; add --yes to do it")
    else:
        told = ", ".join(f"{n} {what}" for what, n in sorted(counts.items())) or "nothing to do"
        click.echo(f"{len(chosen)} sessions: {told}")
