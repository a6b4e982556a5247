"""`prune`: deletes expired rows, or with `--deleted-upstream` the sessions that TARSy has deleted."""

from collections.abc import Mapping

import click

from tarsy_scoring.commands.shared import (
    asker,
    audited,
    json_option,
    print_either,
    progress_bar,
    run_on_parts,
    settings_of_environment,
    yes_option,
)
from tarsy_scoring.retention.erasure import erase
from tarsy_scoring.retention.pruning import COUNT_LIMIT, Pruner, days_to_keep
from tarsy_scoring.tarsy.sessions import open_tarsy_sessions, sessions_gone
from tarsy_scoring.telemetry.stopping import closing
from tarsy_scoring.wiring import Parts


@click.command()
@click.option(
    "--keep", type=click.IntRange(1, 36_500), metavar="DAYS", help="In place of SCORING_RETENTION_DAYS."
)
@click.option("--deleted-upstream", is_flag=True, help="Erase sessions that TARSy has deleted, instead.")
@yes_option
@json_option
def prune(keep: int | None, deleted_upstream: bool, yes: bool, as_json: bool) -> None:
    """
    Delete expired rows.

    SCORING_RETENTION_DAYS, or --keep, says when a row expires. A session is deleted whole when it had no
    activity for that time. Until then the newest completed score stays, however old. Open scores stay.
    Requests stay for 30 days or more: keep them longer than Kafka keeps the topics, or a redelivered
    event is scored again.

    Safe beside running workers: while scores are judged, it works a quarter of the time. Concurrent runs
    are safe, and an interrupted run continues at the next start. Meant for a daily job: `prune --yes`.
    """
    settings = settings_of_environment()
    if deleted_upstream and keep is not None:
        raise click.UsageError("--deleted-upstream follows TARSy's deletions and excludes --keep")

    async def work(parts: Parts) -> Mapping[str, int]:
        if deleted_upstream:
            return await _follow_deletions(parts, yes=yes)
        pruner = Pruner(parts.database, days_to_keep(settings.retention_days if keep is None else keep))
        if not yes:
            return await pruner.count()
        await audited(parts.database, "prune", keep_days=keep)
        # Each plan would look for the least values of indexes, past the entries of all rows deleted before.
        parts.database.plan_once()
        return await pruner.run(progress_bar)

    counts = run_on_parts(work, settings)
    lines = []
    for name, number in counts.items():
        more = "or more " if number >= COUNT_LIMIT and not yes else ""
        lines.append(f"{number:,} {more}{name.replace('_', ' ')}")
    if not deleted_upstream and "scores" not in counts:
        lines.append("scores are kept for ever: neither SCORING_RETENTION_DAYS nor --keep is set")
    if not yes and any(counts.values()):
        lines.append("nothing was removed; add --yes to delete")
    print_either({"removed" if yes else "would_remove": counts}, lines, as_json=as_json)


async def _follow_deletions(parts: Parts, *, yes: bool) -> Mapping[str, int]:
    """Erase the sessions that TARSy has deleted, or only count them; returns their number."""
    sessions = open_tarsy_sessions(parts.settings)
    number = 0
    if yes:
        await audited(parts.database, "prune", deleted_upstream=True)
    async with closing(sessions.tarsy):
        async for gone in sessions_gone(parts.database, sessions):
            for session_id in gone if yes else ():
                await erase(parts.database, parts.leases, session_id, by=asker(), why="deleted_upstream")
            number += len(gone)
    return {"sessions": number}
