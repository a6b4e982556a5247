"""`pause` and `resume`: stop and restart judging for everything, a chain or a provider."""

import difflib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from tarsy_scoring.commands.shared import asker, print_json, run, settings_of_environment
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.limits.rules import Pause
from tarsy_scoring.wiring import open_migrated_parts

T = TypeVar("T")

SEEN = "workers see it within seconds"


@click.command()
@click.option("--chain", metavar="NAME", help="Only the scores of this chain.")
@click.option("--provider", metavar="NAME", help="Only calls of this provider; with --chain, only for that chain.")
@click.option("--reason", metavar="TEXT", help="Stored with the pause and shown beside it.")
@click.option("--list", "only_list", is_flag=True, help="List the pauses; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def pause(chain: str | None, provider: str | None, reason: str | None, only_list: bool, as_json: bool) -> None:
    """
    Stop judging: everything, or the chain or provider named.

    Requests are still stored. Running scores return to the queue after their current call, and no attempt is
    burned. A chain continues with its other providers. An existing pause stays unchanged. `tarsy-scoring
    resume` lifts pauses.
    """
    settings = settings_of_environment()
    if only_list and (chain is not None or provider is not None or reason is not None):
        raise click.UsageError("--list shows all pauses; it goes with no other option than --json")
    _check_names(settings, chain, provider)

    async def work(limits: Limits) -> list[Pause]:
        if not only_list:
            await limits.pause(chain, provider, asker(), reason)
        return await limits.pauses()

    pauses = run(_with_limits(settings, work))
    if as_json:
        print_json({"pauses": [_document(p) for p in pauses]})
        return
    for each in pauses:
        click.echo(str(each))
    if not only_list:
        click.echo(SEEN)
    elif not pauses:
        click.echo("nothing is paused")


@click.command()
@click.option("--chain", metavar="NAME", help="Every pause of this chain, also those of one provider for it.")
@click.option("--provider", metavar="NAME", help="Every pause of this provider, also those for one chain.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def resume(chain: str | None, provider: str | None, as_json: bool) -> None:
    """
    Lift pauses: all, or those of the chain or provider named.

    Prints how many were lifted and which remain. `resume --chain NAME` does not lift a pause of everything.
    """
    settings = settings_of_environment()
    _check_names(settings, chain, provider=None)  # a pause may outlive its provider in the file

    async def work(limits: Limits) -> tuple[int, list[Pause]]:
        return await limits.resume(chain, provider), await limits.pauses()

    lifted, left = run(_with_limits(settings, work))
    if as_json:
        print_json({"lifted": lifted, "pauses": [_document(p) for p in left]})
        return
    click.echo(f"{lifted} {'pause' if lifted == 1 else 'pauses'} lifted" + (f"; {SEEN}" if lifted else ""))
    for each in left:
        click.echo(str(each))


async def _with_limits(settings: Settings, work: Callable[[Limits], Awaitable[T]]) -> T:
    async with open_migrated_parts(settings) as parts:
        return await work(parts.limits)


def _check_names(settings: Settings, chain: str | None, provider: str | None) -> None:
    """Raises: click.BadParameter: an impossible name. Providers must be configured, chains need not be."""
    if chain is not None and not chain.strip():
        raise click.BadParameter("name a chain; leave --chain out to pause everything", param_hint="--chain")
    known = settings.config.providers
    if provider is not None and provider not in known:
        close = difflib.get_close_matches(provider, known, n=1)
        advice = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"
        raise click.BadParameter(f"no provider is called {provider!r}; {advice}", param_hint="--provider")


def _document(pause: Pause) -> dict[str, Any]:
    return {
        "chain": pause.chain,
        "provider": pause.provider,
        "since": pause.since,
        "by": pause.by,
        "reason": pause.reason,
    }
