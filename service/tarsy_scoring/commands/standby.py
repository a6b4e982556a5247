"""Runs the loop for `bridge`, `insights` or `notify`: one process works, others stand by."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

import structlog

from tarsy_scoring.config.secrets import database_url_source
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.kafka.topics import ensure_topics
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.telemetry.health import Health
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.telemetry.metrics_server import serve_metrics
from tarsy_scoring.telemetry.stopping import closing, unless_stopped
from tarsy_scoring.wiring import require_migrated

log = structlog.get_logger()

POOL_SIZE = 3  # one connection holds the leader's lock


class Loop(Protocol):
    """A loop for `run_loop`. `lacking` names the part that it waits for, and is None while it works."""

    @property
    def lacking(self) -> str | None: ...

    async def run(self, stopping: asyncio.Event) -> None: ...


async def run_loop_on_database(
    settings: Settings,
    role: str,
    open_loop: Callable[[Database, Metrics], Loop],
    stopping: asyncio.Event,
    *,
    topics: Sequence[str],
    compacted: Sequence[str] = (),
) -> None:
    """
    `run_loop` for a loop with a database, which it waits for.

    Raises:
        StartRefused: Topics are missing, or the database is not migrated.
    """
    database = Database(
        database_url_source(settings),
        settings.database_schema,
        pool_size=POOL_SIZE,
        statement_cache=settings.database_statement_cache,
    )

    async def prepare() -> None:
        await require_migrated(database, wait=True)
        await ensure_topics(settings, topics, compacted)

    async with closing(database):
        await database.open()
        await run_loop(settings, role, lambda metrics: open_loop(database, metrics), prepare, stopping)


async def run_loop(
    settings: Settings,
    role: str,
    open_loop: Callable[[Metrics], Loop],
    prepare: Callable[[], Coroutine[Any, Any, None]],
    stopping: asyncio.Event,
) -> None:
    """
    Serve metrics and probes, prepare, and run the loop until `stopping`.

    Args:
        prepare: Waits for the systems that the loop needs.
    """
    metrics = Metrics(settings.config.chains)
    metrics.begin(role)
    health = Health("the database or the broker has not answered yet")
    async with serve_metrics(settings, metrics.registry, health) as port:
        log.info("service.starting", roles=[role], metrics_port=port)
        if await unless_stopped(prepare(), stopping):
            loop = open_loop(metrics)
            health.add(lambda: loop.lacking)
            await loop.run(stopping)
    log.info("service.stopped")
