"""`notify`: sends a test message to a destination."""

import os
import sys
import uuid
from datetime import UTC, datetime

import click

from tarsy_scoring.commands.shared import FAILED, plain, run, settings_of_environment
from tarsy_scoring.config.explain import suggest


@click.command()
@click.argument("destination")
def notify(destination: str) -> None:
    """
    Send a test message to a webhook or a channel.

    DESTINATION is a name below `destinations` in the file of SCORING_CONFIG. The message has the type `test`,
    and is signed like others. Needs no database. A destination of the type langfuse takes scores only, so it
    gets no test. Exit status 1 if the message was not taken.
    """
    from tarsy_scoring.deliveries.destinations import open_destinations
    from tarsy_scoring.deliveries.notices import Notice
    from tarsy_scoring.deliveries.sender import DestinationAway, MessageRefused

    settings = settings_of_environment()
    configured = settings.config.destinations
    if destination not in configured:
        has_file = bool(os.environ.get("SCORING_CONFIG"))
        nothing = "; the file has no `destinations`" if has_file else "; SCORING_CONFIG names no file"
        known = suggest(destination, configured) if configured else nothing
        raise click.UsageError(f"no destination is called {destination!r}{known}")
    if configured[destination].type == "langfuse":
        raise click.UsageError(
            "a destination of the type langfuse takes scores only, and a test would stay among them"
        )
    [found] = open_destinations(settings, os.environ, [destination])
    notice = Notice(str(uuid.uuid4()), "test", datetime.now(UTC), None, {}, {})

    async def send() -> None:
        try:
            for message in found.messages([notice]):
                await found.sender.send(message)
        finally:
            await found.sender.close()

    try:
        run(send())
    except (DestinationAway, MessageRefused) as error:
        click.echo(plain(f"{destination} did not take the message: {error}"), err=True)
        sys.exit(FAILED)
    click.echo(f"{destination} has taken the message")
