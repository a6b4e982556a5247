"""`worker`: runs intake, judging and relay until SIGTERM."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import click
import structlog

from tarsy_scoring.analytics.recount import run_recounts
from tarsy_scoring.commands.shared import calm_garbage_collector, run, settings_of_environment
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.config.studies_extra import load_studies
from tarsy_scoring.errors import TimelineUnavailable
from tarsy_scoring.gates.containment import contain_commands
from tarsy_scoring.judge.ask.client import create_clients
from tarsy_scoring.kafka.publisher import STOP_TIMEOUT_S
from tarsy_scoring.kafka.topics import ensure_topics
from tarsy_scoring.memory.loop import Memories
from tarsy_scoring.outbox.relay import Relay
from tarsy_scoring.postgres.database import DatabaseAway
from tarsy_scoring.postgres.recent import database_look
from tarsy_scoring.postgres.transactions import CLOSE_S
from tarsy_scoring.queue.backlog import unpublished_events
from tarsy_scoring.queue.capacity import Capacity
from tarsy_scoring.queue.intake import Intake
from tarsy_scoring.scoring import worker as scoring_worker
from tarsy_scoring.scoring.attempt import Scorer
from tarsy_scoring.scoring.providers import is_self_judged
from tarsy_scoring.scoring.watched_source import WatchedSource
from tarsy_scoring.scoring.worker import Worker
from tarsy_scoring.tarsy.write_back import WriteBack, open_write_back_tarsy
from tarsy_scoring.telemetry.health import Health
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.telemetry.metrics_server import serve_metrics
from tarsy_scoring.telemetry.otel import OFF, Tracing, open_tracing
from tarsy_scoring.telemetry.stopping import cancelling, closing, run_until_signalled, unless_stopped
from tarsy_scoring.timeline.model import TimelineSource
from tarsy_scoring.timeline.sources import open_timeline_source
from tarsy_scoring.wiring import ROLES, Parts, Role, check_settings, open_parts, require_migrated

log = structlog.get_logger()

BACKLOG_EVERY_S = 5.0
FLUSH_S = 20.0  # a batch under way in the relay, and the flush
# Longest stop for a worker that does not judge: loops end, or are cut off and close their Kafka clients, and
# both pools close.
END_S = FLUSH_S + STOP_TIMEOUT_S + 2 * CLOSE_S
# Longest stop for a worker that judges, beyond the drain: judging with the timeline source, and the rest. The
# chart and compose file give more.
JUDGED_S = scoring_worker.STOP_S + CLOSE_S
STOP_S = JUDGED_S + END_S
AGENT_MODELS_TIMEOUT_S = 30.0


def _roles(text: str) -> tuple[Role, ...]:
    """Parse --only. Raises: click.BadParameter: it names no role."""
    wanted = ["judging" if part.strip() == "judge" else part.strip() for part in text.split(",")]
    for role in wanted:
        if role not in ROLES:
            raise click.BadParameter(f"no role is called {role!r} (known: intake, judge, relay)")
    return tuple(r for r in ROLES if r in wanted)


@click.command()
@click.option(
    "--only",
    "roles",
    type=_roles,
    default=",".join(ROLES),
    metavar="ROLE,...",
    help="Run only these roles: intake, judging (or judge), relay. Default: all three.",
)
def worker(roles: tuple[Role, ...]) -> None:
    """
    Take in requests, judge and publish events, until SIGTERM.

    Workers are identical: start as many as you like. On SIGTERM running attempts may finish within
    SCORING_DRAIN_TIMEOUT_S; the others return to the queue. Serves /metrics, /healthz and /readyz on
    SCORING_METRICS_HOST and SCORING_METRICS_PORT.
    """
    settings = settings_of_environment()
    check_settings(settings, roles, os.environ)
    if "judging" in roles:
        contain_commands(settings, os.environ)
    run(run_until_signalled(lambda stopping: run_worker(settings, roles, stopping)))


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
    async with serve_metrics(settings, metrics.registry, health) as port:
        log.info("service.starting", roles=roles, metrics_port=port)
        async with open_parts(settings, metrics) as parts:
            parts.database.plan_once()
            if await unless_stopped(require_migrated(parts.database, wait=True), stopping):
                await _run_roles(parts, roles, health, stopping)
    log.info("service.stopped")


# --- roles ---------------------------------------------------------------------------------------------


async def _run_roles(parts: Parts, roles: tuple[Role, ...], health: Health, stopping: asyncio.Event) -> None:
    """
    Run the loops of these roles on a migrated database; ends when all of them have ended.

    A stop goes in order: intake and judging end at `stopping`, attempts drain, then the relay and the loops
    beside it flush. Each step has a limit, and together they take at most the drain and `STOP_S`. A loop that
    dies ends the process: a worker that lacks a loop would look healthy.
    """
    intake = None
    if "intake" in roles:
        capacity = Capacity(parts.settings, parts.database, parts.metrics, parts.limits.refreshed_standings)
        intake = Intake(parts.settings, parts.inbox, capacity, parts.metrics)
    relay = Relay(parts.settings, parts.database, parts.metrics) if "relay" in roles else None
    beside = await _open_beside_relay(parts) if relay is not None else []
    _watch_readiness(health, parts, intake)
    topics = topics_of(parts.settings, roles)
    judged = asyncio.Event()  # set when judging has ended, so that the relay may flush
    async with asyncio.TaskGroup() as service:
        watching = [
            service.create_task(parts.database.exchange_notifications(is_judging="judging" in roles)),
            service.create_task(_watch_backlog(parts)),
        ]
        ending = [service.create_task(_run_kafka_roles(parts, topics, relay, intake, stopping, judged))]
        ending += [service.create_task(loop(judged)) for loop in beside]
        tracing = OFF
        if "judging" in roles:
            tracing = open_tracing(os.environ)
            await _judge(parts, health, stopping, tracing)
        else:
            await stopping.wait()
        judged.set()
        try:
            async with asyncio.timeout(FLUSH_S):
                await asyncio.gather(*ending, tracing.close())
        except TimeoutError:
            log.warning("worker.not_flushed", timeout_s=FLUSH_S, effect="other workers publish the rest")
        for task in watching:
            task.cancel()


async def _run_kafka_roles(
    parts: Parts,
    topics: Sequence[str],
    relay: Relay | None,
    intake: Intake | None,
    stopping: asyncio.Event,
    judged: asyncio.Event,
) -> None:
    """Run relay and intake when their topics exist."""
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


# --- loops beside the relay ----------------------------------------------------------------------------


# Runs until shortly after the event is set; another process does the rest.
BackgroundLoop = Callable[[asyncio.Event], Coroutine[Any, Any, None]]


async def _open_beside_relay(parts: Parts) -> list[BackgroundLoop]:
    """What a worker with the relay also runs."""
    loops: list[BackgroundLoop] = [partial(run_recounts, parts.database)]
    if parts.settings.write_back_database_url:
        write_back = WriteBack(parts.database, open_write_back_tarsy(parts.settings), parts.metrics)
        loops.append(write_back.run)
    if drift := load_studies("drift_loop"):
        loops.append(drift.DriftLoop(parts.settings, parts.inbox, parts.metrics).run)
    return loops


# --- judging -------------------------------------------------------------------------------------------


async def _judge(parts: Parts, health: Health, stopping: asyncio.Event, tracing: Tracing) -> None:
    """
    Judge due scores until `stopping`, and drain; closes the judge's clients and the source in any case.

    Raises:
        StartRefused: The source answers and lacks what this service needs.
    """
    source = open_timeline_source(parts.settings)
    watched = WatchedSource(source, parts.metrics)
    # As a consumer group that was joined once. A later outage passes, while a source that never answered may
    # be the wrong one: a rollout must not replace working workers then.
    health.add(lambda: watched.unanswered)
    health.details["not_called"] = parts.limits.open_circuits
    clients = create_clients(parts.settings, tracing=tracing)
    async with closing(*clients.values(), source):
        scorer = Scorer(
            settings=parts.settings,
            leases=parts.leases,
            store=parts.store,
            source=watched,
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
            source=watched,
            metrics=parts.metrics,
            limits=parts.limits,
            tracing=tracing,
        )
        log.info("worker.started", owner=str(worker.owner), slots=parts.settings.slots)
        calm_garbage_collector()
        beside = [asyncio.create_task(warn_of_self_judging(parts.settings, source))]
        if parts.settings.config.memories:
            beside.append(asyncio.create_task(Memories(scorer).run(stopping)))
        async with cancelling(*beside):
            await worker.run(stopping)


async def warn_of_self_judging(settings: Settings, source: TimelineSource) -> None:
    """
    Warn once about judge models that also work as agents: their scores carry the flag `self_judged`.

    Runs beside the work for at most 30 s, and ignores a source that cannot be read.
    """
    # Reads no timeline: a timeline that kills the process that reads it must not keep a worker from starting.
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
    taken_in = settings.topic_session_completed, settings.topic_rescore_requested, settings.topic_dead_letters
    published = [settings.topic_scoring_events] if "relay" in roles else []
    return [*(taken_in if "intake" in roles else ()), *published]


async def _watch_backlog(parts: Parts) -> None:
    """Keep the database and outbox metrics up to date; runs until it is cancelled."""
    while True:
        try:
            events, oldest_s = await unpublished_events(parts.database)
            parts.metrics.database_up.set(1)
            parts.metrics.outbox_backlog.set(events)
            parts.metrics.outbox_age.set(oldest_s)
        except DatabaseAway:
            parts.metrics.database_up.set(0)
        await asyncio.sleep(BACKLOG_EVERY_S)


def _watch_readiness(health: Health, parts: Parts, intake: Intake | None) -> None:
    """
    Add the conditions of readiness: the database answers, and intake has joined the consumer group once.

    A broker outage does not end readiness; it shows in the metrics.
    """

    health.add(database_look(parts.database, parts.metrics))
    if intake is not None:
        health.add(lambda: None if intake.has_joined else "the consumer group has not been joined yet")
        health.details["not_read"] = intake.stopped_topics
