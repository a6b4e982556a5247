"""
The drift loop: request judgements for anchors, look for drift and publish events, in one process at a time.

It delays neither judging nor the relay: anchors have the lowest priority, and an unreachable broker delays
only this loop's events. An event is stored with the finding and published under the same id until the
broker acknowledges it (at least once).
"""

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime
from typing import Any, get_args

import structlog
from pydantic_core import to_json

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.events import cloudevents_headers
from tarsy_scoring.kafka.connect import BrokerAway
from tarsy_scoring.kafka.publisher import Publisher, TooLarge
from tarsy_scoring.kafka.topics import ensure_topics
from tarsy_scoring.postgres.database import DatabaseAway
from tarsy_scoring.postgres.leader import AdvisoryLock
from tarsy_scoring.queue.inbox import Inbox
from tarsy_scoring.scores.session_list import chains_of_sessions
from tarsy_scoring.studies import anchors, findings
from tarsy_scoring.studies.anchors import SOURCE_ANCHORS, AnchorStanding, State
from tarsy_scoring.studies.findings import event_of
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.telemetry.stopping import unless_stopped

log = structlog.get_logger()

MOST_CHAINS = 100_000
ASK_EVERY_S = 15.0  # a new judge is noticed within this time
LOOK_EVERY_S = 300.0  # whether a chain is due for a look
PUBLISH_TIMEOUT_S = 10.0
LIMIT = 100  # events per pass

LOOP_LOCK = AdvisoryLock("tarsy-scoring drift")


class DriftLoop:
    """This process's drift loop: active, or on standby while another process holds the lock."""

    def __init__(self, settings: Settings, inbox: Inbox, metrics: Metrics) -> None:
        self._settings = settings
        self._topic = settings.topic_scoring_insights
        self._inbox = inbox
        self._database = inbox.database
        self._metrics = metrics
        self._publisher = Publisher(settings)
        # A look reads the history of all chains, and a worker that starts has scores to judge.
        self._looked_at = time.monotonic()
        self._seen: dict[str, tuple[Any, ...]] = {}

    async def run(self, stopping: asyncio.Event) -> None:
        """Run passes until `stopping` is set; the next process takes over an interrupted pass."""
        try:
            while not stopping.is_set():
                await unless_stopped(self._pass(), stopping)
                await unless_stopped(asyncio.sleep(ASK_EVERY_S), stopping)
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the connection to the brokers."""
        await self._publisher.stop()

    async def _pass(self) -> None:
        is_time = time.monotonic() - self._looked_at >= LOOK_EVERY_S
        try:
            if await self.run_once(datetime.now(UTC), looks=is_time) and is_time:
                self._looked_at = time.monotonic()
        except DatabaseAway as error:
            self._database.note_away(error)
        except (BrokerAway, StartRefused, TooLarge) as error:
            log.warning("drift.waiting", reason=str(error), retry_in_s=ASK_EVERY_S)
        except Exception as error:  # outermost loop: a failure here must not end the worker
            log.error("drift.failed", error=type(error).__name__, exc_info=True)
            self._looked_at = time.monotonic()

    async def run_once(self, now: datetime, *, looks: bool = True) -> bool:
        """
        Request judgements that anchors lack, look at chains that changed, and publish new events.

        Args:
            looks: False: only request and publish.

        Returns:
            False without doing anything when another process holds the lock.

        Raises:
            DatabaseAway, BrokerAway, StartRefused, TooLarge: Retry later; nothing is lost.
        """

        async def work() -> None:
            found = await self._request_judgements()
            if looks:
                await self._look_at_chains(found, now)
            await self._publish()

        return await LOOP_LOCK.lead(self._database, work)

    async def _request_judgements(self) -> AnchorStanding:
        """Request the judgements that are due; returns the anchors as they stand afterwards."""
        found = await anchors.standing(self._inbox.database, self._inbox.policy)
        counts = Counter(a.state for a in found.anchors)
        for state in get_args(State):
            self._metrics.anchor_sessions.labels(state).set(counts[state])
        if due := [a for a in found.anchors if a.is_due]:
            scores = await anchors.ask(self._inbox, due, found.judges, by=SOURCE_ANCHORS)
            log.info(
                "anchors.asked", judgements=len(scores), judges=[j.fingerprint[:12] for j in found.judges]
            )
            found = await anchors.standing(self._inbox.database, self._inbox.policy)
        return found

    async def _look_at_chains(self, found: AnchorStanding, now: datetime) -> None:
        """Look for drift in each chain that is due for a look."""
        judgements = await anchors.judgements(self._database)
        awaited = sum(a.is_awaited for a in found.anchors)
        for chain in await chains_of_sessions(self._database, MOST_CHAINS):
            # Once a day, because each look may raise a false alarm, and when anchors were judged.
            state = len(judgements), awaited, now.date()
            if self._seen.get(chain) == state:
                continue
            criteria = self._inbox.policy.chain(chain).criteria
            made = await findings.look_at(self._database, chain, criteria, found, judgements, now)
            log.debug("drift.looked", chain_id=chain, look=made)
            self._seen[chain] = state

    async def _publish(self) -> None:
        """Publish the oldest unpublished findings. Raises: BrokerAway: Not all were acknowledged in time."""
        news = await findings.unpublished(self._database, LIMIT)
        if not news:
            return
        try:
            async with asyncio.timeout(PUBLISH_TIMEOUT_S):
                await ensure_topics(self._settings, [], compacted=[self._topic])
        except TimeoutError:
            raise BrokerAway(f"the brokers could not be reached within {PUBLISH_TIMEOUT_S:g} s") from None
        # A message's key is unique, so that compaction keeps every event.
        messages = [
            (f"drift:{event['event_id']}".encode(), to_json(event), cloudevents_headers(event))
            for event in map(event_of, news)
        ]
        acknowledged = await self._publisher.publish(self._topic, messages, PUBLISH_TIMEOUT_S)
        done = [f for f, is_there in zip(news, acknowledged, strict=True) if is_there]
        await findings.mark_published(self._database, [f.event_id for f in done])
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
        if len(done) < len(news):
            raise BrokerAway(f"{len(news) - len(done)} of {len(news)} events were not acknowledged in time")
