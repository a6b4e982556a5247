"""`bridge`: publishes an event for each session that ends in TARSy's database."""

import asyncio
from datetime import UTC, datetime

import click
import structlog

from tarsy_scoring.commands.shared import moment, run, settings_of_environment
from tarsy_scoring.config.settings import Settings, variable_of
from tarsy_scoring.kafka.topics import ensure_topics
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.postgres.url import check_url
from tarsy_scoring.tarsy.announcer import BEGINNING
from tarsy_scoring.tarsy.bridge import Bridge
from tarsy_scoring.tarsy.sessions import open_tarsy_sessions
from tarsy_scoring.telemetry.health import Health, HealthServer, run_until_signalled, unless_stopped
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.wiring import require_migrated

log = structlog.get_logger()


@click.command()
@click.option(
    "--since",
    metavar="TIME",
    help="Announce sessions that ended since then, or `beginning`. Default: its last place; at the first start, now.",
)
def bridge(since: str | None) -> None:
    """
    Announce ended sessions of a TARSy database, until SIGTERM.

    Reads SCORING_TIMELINE_DATABASE_URL, never writes to it, and keeps its place in SCORING_DATABASE_URL. It
    can be stopped at any time without missing a session. Of several bridges one works and the others stand
    by. A new value of --since starts over from there; sessions announced before are not scored again. Serves
    /metrics, /healthz and /readyz on SCORING_METRICS_PORT.
    """
    start = None if since is None else BEGINNING if since == "beginning" else moment(since)
    if start is not None and start > datetime.now(UTC):
        raise click.BadParameter(f"{since!r} is in the future: no session would be announced", param_hint="--since")
    settings = settings_of_environment()
    check_url(settings.require_database(), variable_of("database_url"))
    settings.require_kafka()
    run(run_until_signalled(lambda stopping: run_bridge(settings, start, stopping)))


async def run_bridge(settings: Settings, since: datetime | None, stopping: asyncio.Event) -> None:
    """
    Announce sessions until `stopping`.

    Raises:
        ConfigurationError, StartRefused: The start is refused, or TARSy's database lacks a table or column.
    """
    metrics = Metrics(settings.config.chains)
    metrics.begin("bridge")
    health = Health("our database or the broker has not answered yet")
    server = HealthServer(settings, metrics.registry, health)
    sessions = open_tarsy_sessions(settings)
    cache = settings.database_statement_cache
    database = Database(settings.require_database(), settings.database_schema, pool_size=3, statement_cache=cache)
    await server.start()
    log.info("service.starting", roles=["bridge"], metrics_port=server.port)
    try:
        await database.open()
        if await unless_stopped(_surroundings(settings, database), stopping):
            bridge = Bridge(settings, database, sessions, metrics, since)

            async def missing() -> str | None:
                return bridge.lacking

            health.add(missing)
            await bridge.run(stopping)
    finally:
        await sessions.tarsy.close()
        await database.close()
        await server.stop()
    log.info("service.stopped")


async def _surroundings(settings: Settings, database: Database) -> None:
    """Wait for our database and the broker; check that tables and topic exist. Raises: StartRefused."""
    await require_migrated(database, wait=True)
    await ensure_topics(settings, [settings.topic_session_completed])
