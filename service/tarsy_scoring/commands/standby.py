"""Runs the loop for `bridge` or `insights`: one process works, others stand by."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from tarsy_scoring.config.secrets import database_url_source
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.kafka.topics import ensure_topics
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.telemetry.health import Health
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.telemetry.metrics_server import serve_metrics
from tarsy_scoring.telemetry.stopping import unless_stopped
from tarsy_scoring.wiring import require_migrated

log = structlog.get_logger()

POOL_SIZE = 3  # one connection holds the leader's lock


class Loop(Protocol):
    """A loop for `run_loop`. `lacking` names the part that it waits for, and is None while it works."""

    @property
    def lacking(self) -> str | None: ...

    async def run(self, stopping: asyncio.Event) -> None: ...


async def run_loop(
    settings: Settings,
    role: str,
    open_loop: Callable[[Database, Metrics], Loop],
    stopping: asyncio.Event,
    *,
    topics: Sequence[str],
    compacted: Sequence[str] = (),
) -> None:
    """
    Wait for the database and the broker, then run the loop until `stopping`.

    Args:
        topics: Topics that must exist, or are created where the settings allow it.
        compacted: More such topics, of which Kafka keeps the newest message per key.

    Raises:
        StartRefused: Topics are missing, or the database is not migrated.
    """
    metrics = Metrics(settings.config.chains)
    metrics.begin(role)
    health = Health("the database or the broker has not answered yet")
    cache = settings.database_statement_cache
    database = Database(
        database_url_source(settings), settings.database_schema, pool_size=POOL_SIZE, statement_cache=cache
    )

    async def prepare() -> None:
        await require_migrated(database, wait=True)
        await ensure_topics(settings, topics, compacted)

    async with serve_metrics(settings, metrics.registry, health) as port:
        log.info("service.starting", roles=[role], metrics_port=port)
        try:
            await database.open()
            if await unless_stopped(prepare(), stopping):
                loop = open_loop(database, metrics)

                async def lacking() -> str | None:
                    return loop.lacking

                health.add(lacking)
                await loop.run(stopping)
        finally:
            await database.close()
    log.info("service.stopped")
