"""`pause` and `resume`: stop and restart judging for everything, a chain or a provider."""

import click

from tarsy_scoring.commands.shared import (
    asker,
    audited,
    counted,
    json_option,
    not_blank,
    print_either,
    require_known,
    run_on_parts,
    settings_of_environment,
)
from tarsy_scoring.limits.fleet import read_pauses
from tarsy_scoring.limits.rules import Pause
from tarsy_scoring.wiring import Parts

SEEN = "workers see it within seconds"


@click.command()
@click.option("--chain", type=not_blank, metavar="NAME", help="Only the scores of this chain.")
@click.option("--provider", metavar="NAME", help="Only this provider; with --chain, only for that chain.")
@click.option("--reason", metavar="TEXT", help="Stored with the pause and shown beside it.")
@click.option("--list", "only_list", is_flag=True, help="List the pauses; change nothing.")
@json_option
def pause(
    chain: str | None, provider: str | None, reason: str | None, only_list: bool, as_json: bool
) -> None:
    """
    Stop judging: everything, or the chain or provider named.

    Requests are still stored. Running scores return to the queue after their current call, and no attempt is
    burned. A chain continues with the other providers. An existing pause stays unchanged. `tarsy-scoring
    resume` lifts pauses.
    """
    settings = settings_of_environment()
    if only_list and any((chain, provider, reason)):
        raise click.UsageError("--list shows all pauses; it goes with no other option than --json")
    if provider is not None:
        require_known("provider", provider, settings.config.providers, "--provider")

    async def work(parts: Parts) -> list[Pause]:
        if not only_list:
            await audited(parts.database, "pause", chain=chain, provider=provider)
            await parts.limits.pause(chain, provider, asker(), reason)
        return await read_pauses(parts.database)

    pauses = run_on_parts(work, settings)
    last = SEEN if not only_list else "" if pauses else "nothing is paused"
    print_either({"pauses": pauses}, filter(None, [*map(str, pauses), last]), as_json=as_json)


@click.command()
@click.option("--chain", type=not_blank, metavar="NAME", help="Every pause of this chain.")
@click.option("--provider", metavar="NAME", help="Every pause of this provider.")
@json_option
def resume(chain: str | None, provider: str | None, as_json: bool) -> None:
    """
    Lift pauses: all, or those of the chain or provider named.

    Prints how many were lifted and which remain. `resume --chain NAME` does not lift a pause of everything.
    """
    settings = settings_of_environment()

    async def work(parts: Parts) -> tuple[int, list[Pause]]:
        await audited(parts.database, "resume", chain=chain, provider=provider)
        return await parts.limits.resume(chain, provider), await read_pauses(parts.database)

    lifted, left = run_on_parts(work, settings)
    first = f"{counted(lifted, 'pause')} lifted" + (f"; {SEEN}" if lifted else "")
    print_either({"lifted": lifted, "pauses": left}, [first, *map(str, left)], as_json=as_json)
