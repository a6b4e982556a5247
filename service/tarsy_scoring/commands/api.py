"""`api`: serves the HTTP API, live events over WebSocket, and the pages."""

import asyncio
import os

import click
import structlog

from tarsy_scoring.commands.shared import calm_garbage_collector, run, settings_of_environment
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.live.gateway import Gateway
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.telemetry.metrics_server import serve_metrics
from tarsy_scoring.telemetry.stopping import closing, run_until_signalled, unless_stopped
from tarsy_scoring.timeline.model import TimelineSource
from tarsy_scoring.timeline.sources import open_timeline_source
from tarsy_scoring.web.app import create_app
from tarsy_scoring.web.context import AppContext
from tarsy_scoring.web.edge.access import Access
from tarsy_scoring.web.server import address_of, listen, serve
from tarsy_scoring.wiring import Parts, check_settings, open_parts, require_migrated

log = structlog.get_logger()


@click.command()
def api() -> None:
    """
    Serve the HTTP API, WebSocket and pages, until SIGTERM.

    Listens on SCORING_API_HOST and SCORING_API_PORT (0: any free port, printed). An address beyond loopback
    needs tokens (SCORING_API_TOKENS_FILE), proxies that sign users in (SCORING_TRUSTED_PROXIES, with
    SCORING_TRUSTED_PROXY_SECRET) or an explicit SCORING_API_OPEN=true. With a timeline source, callers can
    also request scores of sessions unknown to this service. Without Kafka, scoring events arrive up to a
    second late. Serves /metrics on SCORING_METRICS_HOST and SCORING_METRICS_PORT.
    """
    settings = settings_of_environment()
    check_settings(settings, (), os.environ)
    access = Access(settings)
    run(run_until_signalled(lambda stopping: run_api(settings, access, stopping)))


async def run_api(settings: Settings, access: Access, stopping: asyncio.Event) -> None:
    """
    Serve until `stopping`. While the database is away, probes answer, and every other request gets 503.

    Raises:
        ConfigurationError, StartRefused: The start is refused.
    """
    source = open_timeline_source(settings) if settings.timeline_source else None
    if source is None:
        log.warning("api.no_timeline_source", effect="only sessions that are known here can be scored")
    metrics = Metrics(settings.config.chains)
    metrics.begin("api")
    async with (
        closing(*([source] if source is not None else [])),
        serve_metrics(settings, metrics.registry) as metrics_port,
        open_parts(settings, metrics) as parts,
    ):
        await _serve(parts, source, access, metrics_port, stopping)
    log.info("service.stopped")


async def _serve(
    parts: Parts, source: TimelineSource | None, access: Access, metrics_port: int, stopping: asyncio.Event
) -> None:
    settings = parts.settings
    gateway = Gateway(settings, parts.database, parts.metrics)
    context = AppContext(
        settings,
        parts.registry,
        parts.inbox,
        parts.leases,
        parts.reader,
        parts.analytics,
        parts.metrics,
        source,
        gateway,
    )
    app = create_app(context, access=access)
    app.state.has_started = False
    calm_garbage_collector()
    listening = listen(settings)
    log.info(
        "api.listening",
        address=address_of(listening),
        metrics_port=metrics_port,
        kafka=settings.kafka_bootstrap_servers is not None,
    )
    if settings.log_format != "json":  # a collector of JSON lines finds the address in the log
        click.echo(f"listening on {address_of(listening)}")
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(serve(app, settings, listening, stopping))
        if await unless_stopped(require_migrated(parts.database, wait=True), stopping):
            app.state.has_started = True
            parts.metrics.database_up.set(1)
            beside = (parts.database.send_notifications(), gateway.run(stopping))
            running = [group.create_task(loop) for loop in beside]
            await asyncio.wait({serving})
            for task in running:
                task.cancel()
