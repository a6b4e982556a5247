"""
The loop that keeps anchors judged, looks for drift, and tells of it: in one process at a time, whichever is first.

Laws. It never waits in the way of judging or of the relay: anchors are asked for behind everything else, and a broker
that is away delays events alone. An event is stored with its finding and published until the broker has acknowledged
it, under the same id: at least once.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, get_args

import structlog
from pydantic_core import to_json

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.drift import anchors, detection
from tarsy_scoring.drift.anchors import AUTOMATIC, Standing, State
from tarsy_scoring.drift.detection import Finding, event_of
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.events import cloudevents_headers
from tarsy_scoring.kafka.clients import BrokerAway, Headers, Publisher, TooLarge
from tarsy_scoring.kafka.topics import ensure_topics
from tarsy_scoring.postgres.database import Connection, DatabaseAway
from tarsy_scoring.postgres.leader import AdvisoryLock
from tarsy_scoring.queue.inbox import Inbox
from tarsy_scoring.telemetry.health import unless_stopped
from tarsy_scoring.telemetry.metrics import Metrics

log = structlog.get_logger()

ASK_EVERY_S = 15.0  # how late a new judge is noticed
# Reads the scores of every chain; what it decides changes with days and hundreds of sessions.
LOOK_EVERY_S = 300.0
PUBLISH_TIMEOUT_S = 10.0
LIMIT = 100

LOOP_LOCK = AdvisoryLock("tarsy-scoring drift")


class DriftLoop:
    """The loop of this process: at work, or standing by while another process is."""

    def __init__(self, settings: Settings, inbox: Inbox, metrics: Metrics) -> None:
        self._settings = settings
        self._topic = settings.topic_scoring_insights
        self._inbox = inbox
        self._database = inbox.database
        self._metrics = metrics
        self._publisher = Publisher(settings)
        self._has_topic = False
        self._looked_at: float | None = None
        self._seen: dict[str, tuple[Any, ...]] = {}

    async def run(self, stopping: asyncio.Event) -> None:
        """Ask, look and tell until `stopping`; what is under way then is left to the next one."""
        try:
            while not stopping.is_set():
                await unless_stopped(self._pass(), stopping)
                await unless_stopped(asyncio.sleep(ASK_EVERY_S), stopping)
        finally:
            await self._publisher.stop()

    async def _pass(self) -> None:
        is_time = self._looked_at is None or time.monotonic() - self._looked_at >= LOOK_EVERY_S
        try:
            if await self.run_once(datetime.now(UTC), looks=is_time) and is_time:
                self._looked_at = time.monotonic()
        except (DatabaseAway, BrokerAway, StartRefused, TooLarge) as error:
            log.warning("drift.waiting", reason=str(error), retry_in_s=ASK_EVERY_S)
        except Exception as error:  # an outermost loop: what cannot be reckoned here must end no judging
            log.error("drift.failed", error=type(error).__name__, exc_info=True)
            self._looked_at = time.monotonic()

    async def run_once(self, now: datetime, *, looks: bool = True) -> bool:
        """
        Ask for judgements that anchors lack, look where it is time to, publish what is news; says whether it was ours.

        Args:
            looks: False: only ask and publish.

        Raises:
            DatabaseAway, BrokerAway, StartRefused, TooLarge: The same again later; nothing is lost.
        """

        async def lead(connection: Connection) -> bool:
            if not await LOOP_LOCK.try_lead(connection, self._database.schema):
                return False
            found = await self._ask()
            if looks:
                await self._look(found, now)
            await self._publish()
            return True

        return await self._database.once(lead)

    async def _ask(self) -> Standing:
        found = await anchors.standing(self._inbox)
        counts = Counter(a.state for a in found.anchors)
        for state in get_args(State):
            self._metrics.anchor_sessions.labels(state).set(counts[state])
        if any(a.is_due for a in found.anchors):
            scores = await anchors.ask(self._inbox, found, by=AUTOMATIC)
            self._metrics.anchors_asked.inc(len(scores))
            log.info("anchors.asked", judgements=len(scores), judges=[j.fingerprint[:12] for j in found.judges])
            found = await anchors.standing(self._inbox)
        return found

    async def _look(self, found: Standing, now: datetime) -> None:
        judgements = await anchors.judgements(self._database)
        awaited = sum(a.state in ("lacking", "under_way") for a in found.anchors)
        for chain, newest_at in (await detection.chains(self._database)).items():
            # What a look says changes with these; the day is for looks that wait for days to pass.
            state = newest_at, len(judgements), awaited, now.date()
            if self._seen.get(chain) == state:
                continue
            criteria = self._inbox.policy.chain(chain).criteria
            stands = await detection.situation(self._database, chain, criteria, found, judgements)
            if stands is not None:
                made = await detection.look_at(self._database, stands, now)
                log.debug("drift.looked", chain_id=chain, looks=made)
            self._seen[chain] = state

    async def _publish(self) -> None:
        news = await detection.unpublished(self._database, LIMIT)
        if not news:
            return
        await self._require_topic()
        messages = [_message(event_of(f)) for f in news]
        acknowledged = await self._publisher.publish(self._topic, messages, PUBLISH_TIMEOUT_S)
        done = [f for f, is_there in zip(news, acknowledged, strict=True) if is_there]
        await detection.mark_published(self._database, [f.event_id for f in done])
        self._tell(done)
        if len(done) < len(news):
            raise BrokerAway(f"{len(news) - len(done)} of {len(news)} events were not acknowledged in time")

    async def _require_topic(self) -> None:
        """Raises: BrokerAway, StartRefused: There is no topic yet that could take the event."""
        if self._has_topic:
            return
        try:
            async with asyncio.timeout(PUBLISH_TIMEOUT_S):
                await ensure_topics(self._settings, [self._topic])
        except TimeoutError:
            raise BrokerAway(f"the brokers could not be reached within {PUBLISH_TIMEOUT_S:g} s") from None
        self._has_topic = True

    def _tell(self, done: Sequence[Finding]) -> None:
        for finding in done:
            self._metrics.drift_events.labels(finding.cause).inc()
            log.warning(
                "drift.detected",
                chain_id=finding.chain_id,
                cause=finding.cause,
                is_clear=finding.is_clear,
                size_points=None if finding.size is None else finding.size.value,
                event_id=str(finding.event_id),
            )


def _message(event: Mapping[str, Any]) -> tuple[bytes, bytes, Headers]:
    """Key, value and headers (CloudEvents 1.0). The key keeps it beside the signals of its chain in compaction."""
    return f"drift:{event['event_id']}".encode(), to_json(event), cloudevents_headers(event)
