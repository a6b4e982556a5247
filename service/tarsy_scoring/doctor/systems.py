"""Checks brokers and topics, the timeline source, the write-back and the judges' models."""

import asyncio
from collections.abc import Mapping
from typing import Any

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.doctor.checks import LIMIT_S, Check, CheckFault, NotChecked
from tarsy_scoring.errors import ScoringError
from tarsy_scoring.judge.ask.client import JudgeClient, create_clients
from tarsy_scoring.judge.clock import AttemptClock
from tarsy_scoring.judge.verdict import Message, Question
from tarsy_scoring.kafka.connect import BrokerAway, check_brokers
from tarsy_scoring.kafka.examine import TopicFacts, has_codecs, read_topics
from tarsy_scoring.kafka.publisher import MAX_REQUEST_BYTES
from tarsy_scoring.kafka.security import connection_options
from tarsy_scoring.memory.tables import check_models, open_memories
from tarsy_scoring.tarsy.reviews import open_reviews
from tarsy_scoring.tarsy.write_back import open_write_back_tarsy
from tarsy_scoring.telemetry.stopping import closing
from tarsy_scoring.timeline.sources import open_timeline_source

QUESTION = Question("analysis", [Message("user", "Reply with the word ready.")])


def broker_checks(settings: Settings) -> list[Check]:
    """Broker checks; the check of codecs needs no broker."""
    looks = _BrokerLooks(settings)
    return [
        Check("codecs", looks.codecs),
        Check("brokers", looks.brokers),
        Check("topics", looks.topics, ["brokers"]),
        Check("topic-settings", looks.settings_of_topics, ["topics"]),
    ]


class _BrokerLooks:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._taken_in = settings.topic_session_completed, settings.topic_rescore_requested
        self._events, self._dead_letters = settings.topic_scoring_events, settings.topic_dead_letters
        self._options: Mapping[str, Any] = {}
        self._found: list[TopicFacts] = []

    async def codecs(self) -> str:
        if not has_codecs():
            raise CheckFault(
                "batches cannot be read that are compressed with snappy, lz4 or zstd",
                "install aiokafka with the extras snappy, lz4 and zstd, as the image of the service does",
            )
        return "gzip, snappy, lz4 and zstd can be read"

    async def brokers(self) -> str:
        self._options = connection_options(self._settings)
        try:
            await check_brokers(self._options)
        except BrokerAway as error:
            raise CheckFault(str(error), "start the brokers, or correct SCORING_KAFKA_*") from error
        return f"{self._settings.require_kafka()} answers, and lets this login in"

    async def topics(self) -> str:
        names = {*self._taken_in, self._events, self._dead_letters}
        self._found = await read_topics(self._options, sorted(names))
        missing = ", ".join(sorted(names - {topic.name for topic in self._found}))
        if missing and self._settings.create_topics:
            raise NotChecked(f"{missing}: the first worker creates what is missing (SCORING_CREATE_TOPICS)")
        if missing:
            raise CheckFault(
                f"there is no topic {missing}, or this login may not see it",
                "create it, let the service do it (SCORING_CREATE_TOPICS=true), or grant DESCRIBE",
            )
        return ", ".join(f"{t.name} ({t.partitions} partitions)" for t in self._found)

    async def settings_of_topics(self) -> str:
        """Check the cleanup policy and message sizes."""
        configs = {topic.name: topic.config for topic in self._found if topic.config is not None}
        if len(configs) < len(self._found):
            raise NotChecked("this login may not read the configuration of topics (DESCRIBE_CONFIGS)")
        if faults := self._topic_faults(configs):
            raise CheckFault("\n".join(faults), "change the topics; docs/requirements.md says why")
        return "cleanup and sizes fit"

    def _topic_faults(self, configs: Mapping[str, Mapping[str, str]]) -> list[str]:
        limits = {name: int(config["max.message.bytes"]) for name, config in configs.items()}
        least = {self._events: MAX_REQUEST_BYTES, self._dead_letters: max(limits[n] for n in self._taken_in)}
        faults = [
            f"{name}: cleanup.policy=delete keeps every event"
            for name, config in configs.items()
            if "compact" in config["cleanup.policy"]
        ]
        return faults + [
            f"{name}: max.message.bytes must be {wanted} or more"
            for name, wanted in least.items()
            if limits[name] < wanted
        ]


def source_checks(settings: Settings) -> list[Check]:
    """The checks of the timeline source, of the reviews that a bridge reads, and of the write-back."""

    async def source() -> str:
        if settings.timeline_source is None:
            raise NotChecked("SCORING_TIMELINE_SOURCE is not set")
        opened = open_timeline_source(settings)
        async with closing(opened):
            await opened.check()
        return f"{settings.timeline_source} can be read"

    async def reviews() -> str:
        tarsy = open_reviews(settings)
        async with closing(tarsy), tarsy.transaction():
            return "reviews in TARSy can be read"

    async def write_back() -> str:
        tarsy = open_write_back_tarsy(settings)
        async with closing(tarsy), tarsy.transaction():
            return "scores can be written back"

    checks = [Check("source", source)]
    if settings.timeline_database_url is not None:
        checks.append(Check("reviews", reviews, ["source"]))
    if settings.write_back_database_url is not None:
        checks.append(Check("write_back", write_back))
    return checks


def judge_checks(settings: Settings, *, with_judge: bool) -> list[Check]:
    """
    The check of the models, and of the one that embeds memories.

    Args:
        with_judge: Make one short call to the model of each provider; False: the check is skipped.
    """

    async def judge() -> str:
        if not with_judge:
            raise NotChecked("--no-judge: no model was called")
        clients = create_clients(settings)
        async with closing(*clients.values()):
            answers = await asyncio.gather(*map(_ask, clients.values()))
        found = "; ".join(words for words, _ in answers)
        if not all(has_answered for _, has_answered in answers):
            raise CheckFault(
                found, "check base_url, model and key of the providers that failed, and the network"
            )
        return found

    async def memory() -> str:
        tarsy, clients = open_memories(settings), create_clients(settings)
        async with closing(tarsy, *clients.values()):
            return await check_models(tarsy, settings, clients)

    remembers = settings.config.memories and settings.write_back_database_url
    return [Check("judge", judge), *([Check("memory", memory, ["judge"])] if remembers else [])]


async def _ask(client: JudgeClient) -> tuple[str, bool]:
    """Ask the model; returns the result in words, and whether it answered."""
    try:
        turn = await client.ask(QUESTION, clock=AttemptClock(LIMIT_S - 1))
    except ScoringError as error:
        return f"{error} ({client.settings.base_url})", False
    model = turn.model_served or turn.model_requested
    return f"{client.provider}: {model} answered in {turn.latency_ms / 1000:.1f} s", True
