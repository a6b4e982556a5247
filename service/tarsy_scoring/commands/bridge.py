"""`bridge`: publishes an event for each session that ends in TARSy's database."""

import asyncio
from datetime import UTC, datetime

import click

from tarsy_scoring.commands.shared import run, settings_of_environment, time_option
from tarsy_scoring.commands.standby import run_loop_on_database
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.queue.inbox import Inbox
from tarsy_scoring.tarsy.bridge import Bridge
from tarsy_scoring.tarsy.reviews import Reviews, open_reviews
from tarsy_scoring.tarsy.sessions import BEGINNING, open_tarsy_sessions
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.telemetry.stopping import closing, run_until_signalled
from tarsy_scoring.wiring import policy_of


def _parse_since(text: str) -> datetime:
    """Parse --since: a time, or `beginning`. Raises: click.BadParameter: it is no time, or in the future."""
    start = BEGINNING if text == "beginning" else time_option(text)
    if start > datetime.now(UTC):
        raise click.BadParameter(f"{text!r} is in the future: no session would be announced")
    return start


@click.command()
@click.option(
    "--since",
    type=_parse_since,
    metavar="TIME",
    help="Announce sessions that ended since then, or `beginning`. Default: its last place; at the first start, now.",
)
@click.option(
    "--reviews-since",
    type=_parse_since,
    metavar="TIME",
    help="Also make labels of reviews that were given in TARSy since then. Default: since the first start.",
)
def bridge(since: datetime | None, reviews_since: datetime | None) -> None:
    """
    Announce ended sessions of a TARSy database, until SIGTERM, and make labels of reviews there.

    Reads SCORING_TIMELINE_DATABASE_URL, never writes to it, and keeps a position in SCORING_DATABASE_URL. It
    can be stopped at any time without missing a session. Of several bridges one works and the others stand
    by. A new value of --since starts over from there; sessions announced before are not scored again. Serves
    /metrics, /healthz and /readyz on SCORING_METRICS_PORT.
    """
    settings = settings_of_environment()
    settings.require_database()
    settings.require_kafka()
    run(run_until_signalled(lambda stopping: run_bridge(settings, since, stopping, reviews_since)))


async def run_bridge(
    settings: Settings, since: datetime | None, stopping: asyncio.Event, reviews_since: datetime | None = None
) -> None:
    """
    Announce sessions until `stopping`.

    Raises:
        ConfigurationError, StartRefused: The start is refused, or TARSy's database lacks a table or column.
    """
    wanted = {c.references.get("from_reviews", "none") for c in settings.config.named_chains.values()}
    registry = load_criteria(settings.config.criteria_dirs) if wanted != {"none"} else None
    policy = policy_of(settings, registry) if registry is not None else None
    sessions, tarsy = open_tarsy_sessions(settings), open_reviews(settings)

    def open_bridge(database: Database, metrics: Metrics) -> Bridge:
        inbox = Inbox(database, policy) if policy is not None else None
        reviews = Reviews(settings, database, tarsy, inbox, reviews_since)
        return Bridge(settings, database, sessions, metrics, since, reviews=reviews)

    async with closing(sessions.tarsy, tarsy):
        await run_loop_on_database(
            settings, "bridge", open_bridge, stopping, topics=[settings.topic_session_completed]
        )
