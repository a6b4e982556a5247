"""`notify`: sends notifications about scores, or a test message."""

import os
import sys
from functools import partial

import click

from tarsy_scoring.commands.shared import FAILED, plain, require_extra, run, settings_of_environment
from tarsy_scoring.commands.standby import run_loop
from tarsy_scoring.config.explain import suggest
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.kafka.security import check_login
from tarsy_scoring.kafka.topics import ensure_topics
from tarsy_scoring.telemetry.stopping import run_until_signalled


@click.command()
@click.option("--test", metavar="TARGET", help="Send a test message to this target, and end.")
def notify(test: str | None) -> None:
    """
    Send notifications about scores, until SIGTERM.

    Reads scoring events and sends messages to the targets below `notifications` in the file of
    SCORING_CONFIG: signed webhooks, the services of apprise (Slack, Teams, mail and others) and Langfuse.
    Needs no database. Serves /metrics, /healthz and /readyz on SCORING_METRICS_PORT. Needs the extra
    `notifications`: pip install 'tarsy-scoring[notifications]'.

    --test ends with status 1 if the message was not taken.
    """
    settings = settings_of_environment()
    require_extra("apprise", "notifications")
    if test is not None:
        _send_test(settings, test)
        return
    settings.require_kafka()
    check_login(settings)
    if not settings.config.notifications:
        raise ConfigurationError("the file of SCORING_CONFIG has no `notifications`: nothing to send to")
    from tarsy_scoring.notifications.loop import Notifier
    from tarsy_scoring.notifications.targets import open_target

    targets = {name: open_target(name, settings, os.environ) for name in settings.config.notifications}
    send = partial(
        run_loop,
        settings,
        "notify",
        lambda metrics: Notifier(settings, targets, metrics),
        lambda: ensure_topics(settings, [settings.topic_scoring_events]),
    )
    run(run_until_signalled(send))


def _send_test(settings: Settings, name: str) -> None:
    from tarsy_scoring.notifications.targets import MessageRefused, TargetAway, open_target

    targets = settings.config.notifications
    if name not in targets:
        raise click.UsageError(f"no target is called {name!r}{suggest(name, targets)}")
    try:
        open_target(name, settings, os.environ).send(None)
    except (TargetAway, MessageRefused) as error:
        click.echo(plain(f"{name} did not take the message: {error}"), err=True)
        sys.exit(FAILED)
    click.echo(f"{name} has taken the message")
