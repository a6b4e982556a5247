"""`insights`: publish rolling figures of every chain."""

import asyncio

import click
import structlog

from tarsy_scoring.commands.shared import run, settings_of_environment
from tarsy_scoring.config.settings import Settings, variable_of
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.kafka.security import check_login
from tarsy_scoring.kafka.topics import ensure_topics
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.postgres.url import check_url
from tarsy_scoring.telemetry.health import Health, HealthServer, run_until_signalled, unless_stopped
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.wiring import require_migrated

log = structlog.get_logger()

POOL_SIZE = 3  # one holds the lock, one reads figures


@click.command()
def insights() -> None:
    """
    Publish rolling figures of every chain, until SIGTERM.

    Publishes, per chain, the figures of the last hour and of the last day: scores, their mean, the share
    under the threshold, failures, failure tags and cost. They go to SCORING_TOPIC_SCORING_INSIGHTS within
    about a second after a score ended, one message per chain, which replaces the one before. Reads scoring
    events to learn which chains changed, and the figures from SCORING_DATABASE_URL, where read access is
    enough. Of several processes one works and the others stand by. It keeps no state and may be killed at any
    moment. Serves /metrics, /healthz and /readyz on SCORING_METRICS_PORT. Needs the extra `insights`: pip
    install 'tarsy-scoring[insights]'.
    """
    settings = settings_of_environment()
    check_url(settings.require_database(), variable_of("database_url"))
    settings.require_kafka()
    check_login(settings)
    require_faust()
    run(run_until_signalled(lambda stopping: run_insights(settings, stopping)))


def require_faust() -> None:
    """Raises: ConfigurationError: It is not installed; names the command that installs it."""
    try:
        import faust  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"insights needs faust-streaming, which is not installed ({error}); "
            "run: pip install 'tarsy-scoring[insights]'"
        ) from error


async def run_insights(settings: Settings, stopping: asyncio.Event) -> None:
    """
    Publish figures until `stopping`.

    Raises:
        StartRefused: Topics are missing, or the database is not migrated.
    """
    from tarsy_scoring.signals.publisher import RollingSignals

    metrics = Metrics(settings.config.chains)
    metrics.begin("insights")
    health = Health("the database or the broker has not answered yet")
    server = HealthServer(settings, metrics.registry, health)
    cache = settings.database_statement_cache
    database = Database(
        settings.require_database(), settings.database_schema, pool_size=POOL_SIZE, statement_cache=cache
    )
    await server.start()
    log.info("service.starting", roles=["insights"], metrics_port=server.port)
    try:
        await database.open()
        if await unless_stopped(_prepare(settings, database), stopping):
            signals = RollingSignals(settings, database, metrics)

            async def missing() -> str | None:
                return signals.lacking

            health.add(missing)
            await signals.run(stopping)
    finally:
        await database.close()
        await server.stop()
    log.info("service.stopped")


async def _prepare(settings: Settings, database: Database) -> None:
    """Wait for database and broker; check that tables and topics exist. Raises: StartRefused."""
    await require_migrated(database, wait=True)
    await ensure_topics(settings, [settings.topic_scoring_events], [settings.topic_scoring_insights])
