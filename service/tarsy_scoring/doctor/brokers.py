"""Checks of the Kafka brokers, of the topics that the service uses, and of the codecs of their batches."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.doctor.checks import Check, Fault, NotChecked
from tarsy_scoring.kafka.connect import BrokerAway, check_brokers
from tarsy_scoring.kafka.examine import TopicFacts, has_codecs, may_read, may_use_group, read_topics
from tarsy_scoring.kafka.publisher import MAX_REQUEST_BYTES
from tarsy_scoring.kafka.security import connection_options
from tarsy_scoring.retention.pruning import Keep

DAY_MS = 86_400_000
MOST_INSIGHT_BYTES = 65_536  # a message of `scoring-insights` has a few kB, and a batch of them up to 16


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of the service, by what it does with them."""

    taken_in: Sequence[str]
    events: str
    dead_letters: str

    @classmethod
    def of(cls, settings: Settings) -> "Topics":
        """Those of these settings."""
        taken_in = settings.topic_session_completed, settings.topic_rescore_requested
        return cls(taken_in, settings.topic_scoring_events, settings.topic_dead_letters)

    @property
    def written(self) -> Sequence[str]:
        """Those that are written to."""
        return self.events, self.dead_letters

    @property
    def names(self) -> Sequence[str]:
        """All of them."""
        return *self.taken_in, *self.written


def broker_checks(settings: Settings) -> list[Check]:
    """The checks of the brokers; the codecs need none."""
    looks = _Looks(settings)

    def check(name: str, look: Callable[[], Awaitable[str]], *needs: str) -> Check:
        return Check(name, look, needs, f"the brokers at {settings.kafka_bootstrap_servers}")

    return [
        check("codecs", looks.codecs),
        check("brokers", looks.brokers),
        check("topics", looks.topics, "brokers"),
        check("topic-permissions", looks.permissions, "topics"),
        check("topic-limits", looks.limits, "topics"),
        check("topic-retention", looks.retention, "topics"),
        check("topic-durability", looks.durability, "topics"),
        check("topic-insights", looks.insights, "brokers"),
    ]


class _Looks:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._topics = Topics.of(settings)
        self._options: Mapping[str, Any] = {}
        self._found: list[TopicFacts] = []

    async def codecs(self) -> str:
        if not has_codecs():
            raise Fault(
                "batches compressed with snappy, lz4 or zstd cannot be read",
                "install aiokafka with the extras snappy, lz4 and zstd, as the image of the service does",
            )
        return "gzip, snappy, lz4 and zstd can be read"

    async def brokers(self) -> str:
        self._options = connection_options(self._settings)
        try:
            await check_brokers(self._options)
        except BrokerAway as error:
            raise Fault(
                str(error), "start the brokers, or correct SCORING_KAFKA_BOOTSTRAP_SERVERS"
            ) from error
        return f"{self._settings.require_kafka()} answers, and lets this login in"

    async def topics(self) -> str:
        self._found = await read_topics(self._options, self._topics.names)
        missing = sorted(set(self._topics.names) - {topic.name for topic in self._found})
        if missing and self._settings.create_topics:
            raise NotChecked(
                f"{', '.join(missing)}: the first worker creates what is missing (SCORING_CREATE_TOPICS)"
            )
        if missing:
            raise Fault(
                f"there is no topic {', '.join(missing)}, or this login may not see it",
                "create it, let the service do it (SCORING_CREATE_TOPICS=true), or grant DESCRIBE",
            )
        return ", ".join(f"{t.name} ({t.partitions} partitions)" for t in self._found)

    async def permissions(self) -> str:
        options, group = self._options, self._settings.kafka_group
        lacking = [
            f"READ on {topic}" for topic in self._topics.taken_in if not await may_read(options, topic)
        ]
        if not await may_use_group(options, group):
            lacking.append(f"READ on the group {group}")
        if lacking:
            raise Fault(f"this login lacks {', '.join(lacking)}", "grant it by ACL")
        return "this login may read and use its group"

    async def limits(self) -> str:
        limits = {name: int(config["max.message.bytes"]) for name, config in self._configs().items()}
        faults = []
        if limits[self._topics.events] < MAX_REQUEST_BYTES:
            faults.append(
                f"{self._topics.events} takes messages of {limits[self._topics.events]} bytes, and events have up to "
                f"{MAX_REQUEST_BYTES}: larger ones are published with less content"
            )
        largest = max(limits[name] for name in self._topics.taken_in)
        if limits[self._topics.dead_letters] < largest:
            faults.append(
                f"{self._topics.dead_letters} takes messages of {limits[self._topics.dead_letters]} bytes, and topics "
                f"that are read up to {largest}: larger dead letters keep their body in PostgreSQL"
            )
        if faults:
            advice = (
                f"set max.message.bytes of {self._topics.events} to {MAX_REQUEST_BYTES} or more, and that of "
            )
            raise Fault(
                "; ".join(faults), f"{advice}{self._topics.dead_letters} to that of the topics that are read"
            )
        return _listed(f"{name} {limit} bytes" for name, limit in limits.items())

    async def retention(self) -> str:
        configs = self._configs()
        compacted = [name for name, config in configs.items() if "compact" in config["cleanup.policy"]]
        if compacted:
            raise Fault(
                f"{', '.join(compacted)}: messages are compacted, so that of one session only the newest stays",
                "set cleanup.policy=delete",
            )
        records_days = Keep.of(self._settings).records_days
        kept_ms = {name: int(config["retention.ms"]) for name, config in configs.items()}
        too_long = [
            n for n in self._topics.taken_in if records_days and not 0 <= kept_ms[n] <= records_days * DAY_MS
        ]
        if too_long:
            raise Fault(
                f"{', '.join(too_long)} keeps messages for longer than {records_days} days, for which requests are "
                "kept: a message that is delivered again later is a new request",
                "lower retention.ms of the topic, or raise SCORING_RETENTION_DAYS",
            )
        return _listed(f"{name} {_days(ms)}" for name, ms in kept_ms.items())

    async def durability(self) -> str:
        configs = self._configs()
        for topic in self._found:
            least = int(configs[topic.name]["min.insync.replicas"])
            if least > topic.in_sync or (least == topic.replicas > 1):
                raise Fault(
                    f"{topic.name}: {topic.in_sync} of {topic.replicas} replicas are in sync, and a write needs "
                    f"{least} (min.insync.replicas)",
                    "start the brokers that are down, or use three replicas and min.insync.replicas=2",
                )
        return _listed(f"{t.name} {t.replicas} replicas" for t in self._found)

    async def insights(self) -> str:
        """The topic of rolling signals and drift, which an installation may do without."""
        name = self._settings.topic_scoring_insights
        found = await read_topics(self._options, [name])
        if not found:
            raise NotChecked(f"there is no topic {name}; without rolling signals and drift it is not needed")
        if not await may_read(self._options, name):
            raise Fault(f"this login lacks READ on {name}", "grant it by ACL")
        [topic] = found
        if topic.config is None:
            raise NotChecked(f"this login may not read the configuration of {name} (DESCRIBE_CONFIGS)")
        if "compact" not in topic.config["cleanup.policy"]:
            raise Fault(
                f"{name} is not compacted, and each process of the API reads it from its beginning",
                "set cleanup.policy=compact and segment.ms=3600000",
            )
        if (limit := int(topic.config["max.message.bytes"])) < MOST_INSIGHT_BYTES:
            raise Fault(
                f"{name} takes messages of {limit} bytes, so figures of chains are refused",
                f"set max.message.bytes of {name} to {MOST_INSIGHT_BYTES} or more",
            )
        return f"{name} is compacted, has {topic.partitions} partitions and takes messages of {limit} bytes"

    def _configs(self) -> dict[str, Mapping[str, str]]:
        """The configuration of each topic. Raises: NotChecked: this login may not read it."""
        configs = {topic.name: topic.config for topic in self._found}
        if closed := [name for name, config in configs.items() if config is None]:
            raise NotChecked(
                f"this login may not read the configuration of {', '.join(closed)} (DESCRIBE_CONFIGS)"
            )
        return {name: config for name, config in configs.items() if config is not None}


def _listed(parts: Iterable[str]) -> str:
    return ", ".join(parts)


def _days(ms: int) -> str:
    return "for ever" if ms < 0 else f"{ms / DAY_MS:g} days"
