"""
Builds the parts of a process and runs the roles of a worker.

Order of a stop: intake and worker end first (SIGTERM), attempts drain, the relay flushes, notifications and health end.

Each part is built once and passed down. A loop that dies ends the process: a worker without one of its loops would
look healthy.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import asyncpg
import structlog

from tarsy_scoring.config.load import read_api_key
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.drift.loop import DriftLoop
from tarsy_scoring.errors import ConfigurationError, StartRefused, TimelineUnavailable
from tarsy_scoring.judge.criteria import CriteriaRegistry, load_criteria
from tarsy_scoring.judge.llm import create_clients
from tarsy_scoring.judge.prices import Prices
from tarsy_scoring.kafka.security import check_login
from tarsy_scoring.kafka.topics import ensure_topics
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.limits.rules import require_affordable
from tarsy_scoring.postgres.database import RETRY_MAX_S, Database, DatabaseAway
from tarsy_scoring.postgres.migrate import check_migrated
from tarsy_scoring.queue.admission import Policy
from tarsy_scoring.queue.backlog import unpublished_events
from tarsy_scoring.queue.inbox import Inbox
from tarsy_scoring.queue.intake import Intake
from tarsy_scoring.queue.leases import Leases
from tarsy_scoring.queue.relay import Relay
from tarsy_scoring.queue.store import Store
from tarsy_scoring.records.scores import Reader
from tarsy_scoring.scoring.attempt import Scorer
from tarsy_scoring.scoring.providers import is_self_judged
from tarsy_scoring.scoring.worker import Worker
from tarsy_scoring.tarsy.write_back import WriteBack, open_write_back_tarsy
from tarsy_scoring.telemetry.health import Health, HealthServer, calm_garbage_collector, unless_stopped
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.telemetry.tracing import OFF, Tracing, wants_traces
from tarsy_scoring.timeline.model import TimelineSource
from tarsy_scoring.timeline.sources import open_timeline_source

log = structlog.get_logger()

Role = Literal["intake", "judging", "relay"]
ROLES: tuple[Role, ...] = ("intake", "judging", "relay")
# Errors that waiting cannot mend. PostgreSQL's own message may name the user, so it is replaced.
_DATABASE_REFUSALS = {
    asyncpg.InvalidPasswordError: "wrong user or password",
    asyncpg.InvalidAuthorizationSpecificationError: "the user or the address is not allowed",
    asyncpg.InvalidCatalogNameError: "there is no such database",
    asyncpg.InsufficientPrivilegeError: "the user lacks a permission",
}
# Claims, heartbeats, batches of steps, ends, permits and accounts, intake, relay, drift: at most two connections each.
POOL_SIZE = 16
BACKLOG_EVERY_S = 5.0
READY_TIMEOUT_S = 2.0
AGENT_MODELS_TIMEOUT_S = 30.0
GATES_ADVICE = "set gates.work_dir, and gates.allow_commands for those that run commands"


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that every command with a database uses."""

    settings: Settings
    registry: CriteriaRegistry
    database: Database
    inbox: Inbox
    leases: Leases
    store: Store
    reader: Reader
    limits: Limits
    metrics: Metrics


@asynccontextmanager
async def open_parts(settings: Settings, metrics: Metrics | None = None) -> AsyncIterator[Parts]:
    """
    Build the database pool and everything on top of it. Connects to nothing yet (see `require_migrated`).

    Raises:
        ConfigurationError: No database is configured, or the criteria cannot be read.
    """
    registry = load_criteria(settings.config.criteria_dirs)
    hashes = {c.name: c.criteria_hash for c in registry}
    database = Database(
        settings.require_database(),
        settings.database_schema,
        pool_size=POOL_SIZE,
        statement_cache=settings.database_statement_cache,
    )
    await database.open()
    try:
        inbox = Inbox(database, Policy(settings, hashes))
        limits = Limits(database, settings, least_usd=_replies_usd(settings))
        reader = Reader(database, hashes, limits.waiting)
        leases, store = Leases(database, inbox), Store(database, inbox)
        metrics = metrics or Metrics(settings.config.chains)
        yield Parts(settings, registry, database, inbox, leases, store, reader, limits, metrics)
    finally:
        await database.close()


def _replies_usd(settings: Settings) -> dict[str, float]:
    """The least cost of a call by provider, which is its reserved reply. Empty without any budget."""
    config = settings.config
    if not any((config.budget.daily_usd, *(c.daily_budget_usd for c in (config.defaults, *config.chains.values())))):
        return {}
    return {
        name: Prices(provider).cost_usd(0, 0, provider.max_reply_tokens) or 0.0
        for name, provider in settings.config.providers.items()
    }


@asynccontextmanager
async def open_migrated_parts(settings: Settings) -> AsyncIterator[Parts]:
    """
    `open_parts` for a command: connected, and with every table that this version needs.

    Raises:
        ConfigurationError: See `open_parts`.
        DatabaseAway, StartRefused: See `require_migrated`.
    """
    async with open_parts(settings) as parts:
        await require_migrated(parts.database, wait=False)
        yield parts


async def require_migrated(database: Database, *, wait: bool) -> None:
    """
    Check that the database is migrated.

    Args:
        wait: Wait for a database that is away, and log it; False: raise.

    Raises:
        StartRefused: The database is not migrated, or refuses us.
        DatabaseAway: The database cannot be reached, and `wait` is False.
    """
    while True:
        try:
            await database.once(lambda c: check_migrated(c, database.schema))
            return
        except tuple(_DATABASE_REFUSALS) as error:
            why = next(words for kind, words in _DATABASE_REFUSALS.items() if isinstance(error, kind))
            raise StartRefused(
                f"the database at {database.place} refuses us: {why}; check SCORING_DATABASE_URL"
            ) from error
        except DatabaseAway as error:
            if not wait:
                raise
            log.warning("database.away", reason=str(error), retry_in_s=RETRY_MAX_S)
            await asyncio.sleep(RETRY_MAX_S)


def check_settings(settings: Settings, roles: tuple[Role, ...], environ: Mapping[str, str]) -> None:
    """
    Check that these roles have the settings they need, before anything is started; warn of unlikely ones.

    Raises:
        ConfigurationError: Naming the setting and the remedy.
    """
    settings.require_database()
    if "intake" in roles or "relay" in roles:
        settings.require_kafka()
    if "relay" in roles and settings.write_back:
        open_write_back_tarsy(settings)
    if settings.kafka_bootstrap_servers:
        check_login(settings)
    registry = load_criteria(settings.config.criteria_dirs)
    chains = settings.config.named_chains
    for where, chain in chains.items():
        if chain.criteria not in registry:
            known = ", ".join(sorted(c.name for c in registry))
            raise ConfigurationError(f"{where}.criteria: no criteria are called {chain.criteria!r} (known: {known})")
    if "judging" in roles:
        open_timeline_source(settings)
        for name in settings.config.providers:
            read_api_key(settings, name, environ)
        wants_traces(settings, environ)  # raises if traces are wanted and cannot be exported
        full_window_usd = {
            name: Prices(provider).cost_usd(provider.context_window_tokens, 0, 2 * provider.max_reply_tokens)
            for name, provider in settings.config.providers.items()
        }
        require_affordable(settings, full_window_usd)
    for variable in settings.unknown_variables:
        log.warning("settings.unknown_variable", variable=variable)
    for where, chain in chains.items():
        if names := chain.gates_that_cannot_pass(settings.config.gates):
            log.warning("settings.gates_cannot_pass", where=where, gates=names, advice=GATES_ADVICE)


async def run_worker(settings: Settings, roles: tuple[Role, ...], stopping: asyncio.Event) -> None:
    """
    Run the given roles until `stopping`, then drain and flush.

    Judging begins as soon as the database answers, even while the brokers are away.

    Raises:
        ConfigurationError, StartRefused: The start is refused.
        ExceptionGroup: A loop died.
    """
    metrics = Metrics(settings.config.chains)
    metrics.begin(*roles)
    health = Health("the database has not answered yet")
    server = HealthServer(settings, metrics.registry, health)
    await server.start()
    log.info("service.starting", roles=roles, metrics_port=server.port)
    try:
        async with open_parts(settings, metrics) as parts:
            if await unless_stopped(require_migrated(parts.database, wait=True), stopping):
                await _run_roles(parts, roles, health, stopping)
    finally:
        await server.stop()
    log.info("service.stopped")


async def _run_roles(parts: Parts, roles: tuple[Role, ...], health: Health, stopping: asyncio.Event) -> None:
    intake = Intake(parts.settings, parts.inbox, parts.metrics) if "intake" in roles else None
    relay = Relay(parts.settings, parts.database, parts.metrics) if "relay" in roles else None
    write_back = None
    if "relay" in roles and parts.settings.write_back:
        write_back = WriteBack(parts.database, open_write_back_tarsy(parts.settings), parts.metrics)
        await write_back.require_fit()
    _watch_readiness(health, parts.database, intake)
    judged = asyncio.Event()  # set when judging has ended, so that the relay may flush

    async def run_kafka_roles() -> None:
        topics = topics_of(parts.settings, roles)
        if not topics:
            return
        checking = unless_stopped(ensure_topics(parts.settings, topics), stopping)
        # The relay gives positions to events while the brokers are away, so that the gateway can deliver them.
        if not await (checking if relay is None else relay.assign_positions_during(checking)):
            return
        async with asyncio.TaskGroup() as group:
            if relay is not None:
                group.create_task(relay.run(judged))
            if intake is not None:
                group.create_task(intake.run(stopping))

    async with asyncio.TaskGroup() as service:
        background = [
            service.create_task(parts.database.exchange_notifications()),
            service.create_task(_watch_backlog(parts)),
        ]
        kafka = service.create_task(run_kafka_roles())
        if write_back is not None:
            service.create_task(write_back.run(judged))
        if "relay" in roles:
            service.create_task(DriftLoop(parts.settings, parts.inbox, parts.metrics).run(stopping))
        tracing = OFF
        if "judging" in roles:
            tracing = _tracing(parts.settings)
            await _judge(parts, stopping, tracing)
        else:
            await stopping.wait()
        judged.set()
        await asyncio.gather(kafka, tracing.close())
        for task in background:
            task.cancel()


def _tracing(settings: Settings) -> Tracing:
    """Raises: ConfigurationError: Traces are wanted and cannot be exported."""
    if not wants_traces(settings, os.environ):
        return OFF
    from tarsy_scoring.telemetry.otel import open_spans

    return open_spans()


async def _judge(parts: Parts, stopping: asyncio.Event, tracing: Tracing) -> None:
    source = open_timeline_source(parts.settings)
    clients = create_clients(parts.settings, tracing=tracing)
    try:
        scorer = Scorer(
            settings=parts.settings,
            leases=parts.leases,
            store=parts.store,
            source=source,
            registry=parts.registry,
            clients=clients,
            metrics=parts.metrics,
            limits=parts.limits,
            tracing=tracing,
        )
        worker = Worker(
            settings=parts.settings,
            leases=parts.leases,
            scorer=scorer,
            metrics=parts.metrics,
            limits=parts.limits,
            tracing=tracing,
        )
        log.info("worker.started", owner=str(worker.owner), slots=parts.settings.slots)
        calm_garbage_collector()
        warning = asyncio.create_task(warn_of_self_judging(parts.settings, source))
        try:
            await worker.run(stopping)
        finally:
            warning.cancel()
    finally:
        for client in clients.values():
            await client.close()
        await source.close()


async def warn_of_self_judging(settings: Settings, source: TimelineSource) -> None:
    """
    Warn once of judge models that also work as agents: their scores carry the flag `self_judged`.

    Runs beside the work for at most 30 s, and ignores a source that cannot be read. Reads no timeline: one that kills
    its reader must not keep a worker from starting.
    """
    agents: frozenset[str] = frozenset()
    try:
        async with asyncio.timeout(AGENT_MODELS_TIMEOUT_S):
            agents = await source.recent_agent_models()
    except (TimelineUnavailable, TimeoutError) as error:
        log.debug("judge.agents_unknown", reason=str(error))
    for name, provider in settings.config.providers.items():
        if is_self_judged([provider.model], agents):
            log.warning(
                "judge.self_judged",
                provider=name,
                model=provider.model,
                advice="the model also works as an agent, so its scores are flagged: use another model as the judge",
            )


def topics_of(settings: Settings, roles: tuple[Role, ...]) -> list[str]:
    """Topics that these roles use."""
    topics = []
    if "intake" in roles:
        topics += [settings.topic_session_completed, settings.topic_rescore_requested, settings.topic_dead_letters]
    if "relay" in roles:
        topics.append(settings.topic_scoring_events)
    return topics


async def _watch_backlog(parts: Parts) -> None:
    """Keep the metrics of database and outbox up to date."""
    while True:
        try:
            unpublished = await unpublished_events(parts.database)
            parts.metrics.database_up.set(1)
            parts.metrics.outbox_backlog.set(unpublished.events)
            parts.metrics.outbox_age.set(unpublished.oldest_s)
        except DatabaseAway:
            parts.metrics.database_up.set(0)
        await asyncio.sleep(BACKLOG_EVERY_S)


def _watch_readiness(health: Health, database: Database, intake: Intake | None) -> None:
    """Ready while the database answers, and once intake has joined its group. A broker outage shows in metrics."""

    async def database_answers() -> str | None:
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                await database.once(lambda c: c.execute("SELECT 1"))
        except (DatabaseAway, TimeoutError):
            return "the database does not answer"
        return None

    async def intake_has_joined() -> str | None:
        if intake is None or intake.has_joined:
            return None
        return "the consumer group has not been joined yet"

    health.add(database_answers)
    health.add(intake_has_joined)
