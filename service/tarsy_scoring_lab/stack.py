"""Starts the servers that the service needs on loopback: PostgreSQL, a broker and a scripted judge."""

import asyncio
import contextlib
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Literal, Self

import asyncpg

from tarsy_scoring.config.load import load_settings
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.kafka.topics import ensure_topics
from tarsy_scoring_lab.broker import EmbeddedBroker, choose_broker
from tarsy_scoring_lab.postgres import EmbeddedPostgres, create_database
from tarsy_scoring_lab.process import START_TIMEOUT_S
from tarsy_scoring_lab.recorded_replies import RecordedReplies
from tarsy_scoring_lab.scripted_judge import MODEL, ScriptedJudge


class Stack:
    """
    A context in which PostgreSQL, a broker and a scripted judge run.

    They start at the same time. `env` has the settings with which the service uses them. The two databases,
    `scoring` and `tarsy`, begin empty; the caller migrates and fills them. Leaving the context, or the death
    of this process, removes everything except the content of `directory`.

    Args:
        broker: `auto` is Apache Kafka where it can run, else Tansu, which keeps nothing in `directory`.
        directory: Directory that keeps the data between runs; None: no data is kept.
        recorded: Replies that the judge gives to sessions that it has any for.
        judge_latency_s: Wait of the judge before each answer.
    """

    postgres: EmbeddedPostgres
    kafka: EmbeddedBroker
    judge: ScriptedJudge
    broker_reason: str
    """Why this broker was chosen, in words for people."""
    env: dict[str, str]

    def __init__(
        self,
        *,
        broker: Literal["auto", "apache-kafka", "tansu"] = "auto",
        directory: Path | None = None,
        recorded: RecordedReplies | None = None,
        judge_latency_s: float = 0.0,
    ) -> None:
        self._wanted = broker
        self._directory = directory
        self.postgres = EmbeddedPostgres(directory / "postgresql" if directory else None)
        self.judge = ScriptedJudge(recorded=recorded, latency_s=judge_latency_s)
        self._started = contextlib.AsyncExitStack()

    @property
    def broker(self) -> str:
        """`apache-kafka` or `tansu`."""
        return self.kafka.name

    async def __aenter__(self) -> Self:
        """
        Start all parts and create the topics.

        Raises:
            StartRefused: Naming the part that did not start; the others are stopped again.
        """
        async with contextlib.AsyncExitStack() as started:
            try:
                async with asyncio.TaskGroup() as parts:
                    parts.create_task(_start_named("PostgreSQL", self._start_postgres(started)))
                    parts.create_task(_start_named("broker", self._start_broker(started)))
                    parts.create_task(_start_named("scripted judge", started.enter_async_context(self.judge)))
            except ExceptionGroup as group:
                raise group.exceptions[0] from None  # the others were cancelled, or failed as well
            self.env = self._environment()
            settings = load_settings(self.env)
            topics = [settings.topic_session_completed, settings.topic_rescore_requested]
            topics += [settings.topic_scoring_events, settings.topic_dead_letters]
            # `ensure_topics` waits for a broker without a limit; this one has answered already.
            await _start_named("topics", asyncio.wait_for(ensure_topics(settings, topics), START_TIMEOUT_S))
            self._started = started.pop_all()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._started.aclose()

    async def _start_postgres(self, started: contextlib.AsyncExitStack) -> None:
        await started.enter_async_context(self.postgres)
        self._scoring_url = await create_database(self.postgres.url, "scoring")
        self._tarsy_url = await create_database(self.postgres.url, "tarsy")

    async def _start_broker(self, started: contextlib.AsyncExitStack) -> None:
        directory = self._directory / "broker" if self._directory else None
        self.kafka, self.broker_reason = await choose_broker(self._wanted, directory)
        await started.enter_async_context(self.kafka)

    def _environment(self) -> dict[str, str]:
        return {
            "SCORING_DATABASE_URL": self._scoring_url,
            "SCORING_KAFKA_BOOTSTRAP_SERVERS": self.kafka.bootstrap_servers,
            "SCORING_CREATE_TOPICS": "true",
            "SCORING_TIMELINE_SOURCE": "tarsy-db",
            "SCORING_TIMELINE_DATABASE_URL": self._tarsy_url,
            "OPENAI_BASE_URL": self.judge.base_url,
            "OPENAI_API_KEY": "stand-in",
            "SCORING_JUDGE_MODEL": MODEL,
        }


async def _start_named(part: str, starting: Coroutine[Any, Any, object]) -> None:
    """Await the start of a part. Raises: StartRefused: it failed; the message names the part."""
    try:
        await starting
    except (StartRefused, OSError, asyncpg.PostgresError) as error:
        raise StartRefused(f"{part} did not start: {str(error) or 'no answer in time'}") from error
