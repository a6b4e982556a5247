"""`insights`: scores that end become rolling figures per chain."""

import asyncio
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
import structlog

from tarsy_scoring.commands.shared import FAILED, run, settings_of_environment
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError, StartRefused
from tarsy_scoring.kafka.clients import BrokerAway
from tarsy_scoring.kafka.security import check_login
from tarsy_scoring.kafka.topics import ensure_topics, read_places
from tarsy_scoring.telemetry.health import HealthServer, run_until_signalled, unless_stopped
from tarsy_scoring.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from tarsy_scoring.signals.app import Insights

log = structlog.get_logger()

RETRY_S = 1.0


@click.command()
def insights() -> None:
    """
    Publish rolling figures of every chain, until SIGTERM.

    Reads scoring events and keeps, per chain, the windows of the last hour and of the last day: scores, their mean,
    the share under the threshold, failures, failure tags and cost. They go to SCORING_TOPIC_SCORING_INSIGHTS within
    about a second, one message per chain, which takes the place of the one before. Needs no database. Start as many
    as you like, at most one per partition does something; chains are divided among them. It keeps its state in
    topics of its own (`GROUP-insights-...`), may be killed at any moment, and goes on where it stood. Serves
    /metrics, /healthz and /readyz on SCORING_METRICS_PORT. Needs the extra `insights`:
    pip install 'tarsy-scoring[insights]'.
    """
    settings = settings_of_environment()
    settings.require_kafka()
    check_login(settings)
    require_faust()
    run(run_until_signalled(lambda stopping: run_insights(settings, stopping)))


def require_faust() -> None:
    """Raises: ConfigurationError: It is not installed; with what to install."""
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
        StartRefused: Topics are missing, or do not fit together.
        ScoringError: It cannot go on; start it again.
    """
    from tarsy_scoring.signals.app import Insights

    metrics = Metrics(settings.config.chains)
    metrics.begin("insights")
    health = _Health()
    may_move = "metrics_port" not in settings.model_fields_set
    server = HealthServer(settings.metrics_port, metrics.registry, health.lacking, may_move=may_move)
    await server.start()
    log.info("service.starting", roles=["insights"], metrics_port=server.port)
    try:
        if await unless_stopped(_surroundings(settings), stopping):
            with tempfile.TemporaryDirectory(prefix="tarsy-scoring-insights-", ignore_cleanup_errors=True) as directory:
                health.insights = Insights(settings, metrics, Path(directory))
                await _run_to_an_end(health.insights, stopping)
    finally:
        await server.stop()
    log.info("service.stopped")


async def _run_to_an_end(app: "Insights", stopping: asyncio.Event) -> None:
    """
    Run it, and end the process where it could not be stopped.

    What Faust then leaves behind are threads that nobody ends, and tasks that cannot be cancelled: an orderly end
    would wait for them for ever. Nothing of the app needs one.

    Raises:
        ScoringError: It cannot go on.
    """
    why: BaseException | None = None
    try:
        await app.run(stopping)
    except BaseException as error:
        why = error
        raise
    finally:
        if app.is_hanging:
            click.echo(f"tarsy-scoring: {why or 'it was asked to stop'}; the stream app did not stop in time", err=True)
            os._exit(FAILED)


async def _surroundings(settings: Settings) -> None:
    """Wait for the broker; see that the topics are there and have the same size. Raises: StartRefused."""
    from tarsy_scoring.signals.faust_app import app_id, changelog_topic, grouped_topic, topics_of_insights

    await ensure_topics(settings, *topics_of_insights(settings))
    pair = [grouped_topic(settings), changelog_topic(settings)]
    while True:
        try:
            places = await read_places(settings, app_id(settings), pair)
            break
        except BrokerAway as error:  # a new cluster makes its topic of groups only now
            log.warning("insights.waiting", reason=str(error), retry_in_s=RETRY_S)
            await asyncio.sleep(RETRY_S)
    first, second = (sum(1 for name, _ in places if name == topic) for topic in pair)
    if first != second:
        raise StartRefused(
            f"topic {pair[0]} has {first} partitions and {pair[1]} has {second}: they belong together and must have "
            "as many; delete both and create them anew, the figures are counted again from scoring events"
        )


class _Health:
    """What `/readyz` asks."""

    def __init__(self) -> None:
        self.insights: Insights | None = None

    async def lacking(self) -> str | None:
        """What is not ready; None: all is."""
        if self.insights is None:
            return "the broker has not answered yet"
        return None if self.insights.is_ready else "chains are being assigned, or their figures restored"
