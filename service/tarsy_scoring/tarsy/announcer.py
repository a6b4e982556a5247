"""
The ends of TARSy's sessions as `session-completed` events: each is published until the broker has acknowledged it.

What was announced is remembered in `bridge_announced` as long as somebody may ask for it again. The id of an event is
made of session, status and time of the end: to whom it is repeated, it is the same.
"""

import uuid
from collections.abc import Container, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from pydantic_core import to_json

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.events import SESSION_ID_PATTERN, cloudevents_headers
from tarsy_scoring.kafka.clients import BrokerAway, Headers, Publisher, TooLarge
from tarsy_scoring.postgres.database import CONTACT_S, Database
from tarsy_scoring.tarsy.sessions import STATUSES, EndedSession, Told, id_for_people
from tarsy_scoring.telemetry.metrics import Metrics

log = structlog.get_logger()

BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
PUBLISH_TIMEOUT_S = 10.0
MAX_LABELS_BYTES = 262_144
_NAMESPACE = uuid.UUID("0d9c1a8e-6f0b-5c55-8b8e-53a2f6c3d0a7")  # never change: it would make old events new

ANNOUNCED = "SELECT session_id, event_id FROM {schema}.bridge_announced WHERE session_id = ANY($1::text[])"

# Who was erased here is not announced again: an event would bring the id back, if not the score.
ERASED = """
SELECT session_id FROM unnest($1::text[]) AS asked(session_id) WHERE EXISTS (
  SELECT FROM {schema}.erasures WHERE session_hash = encode(sha256(convert_to(session_id, 'UTF8')), 'hex'))
"""

REMEMBER = """
INSERT INTO {schema}.bridge_announced (session_id, event_id, created_at)
SELECT * FROM unnest($1::text[], $2::uuid[], $3::timestamptz[])
ON CONFLICT (session_id) DO UPDATE SET event_id = excluded.event_id
"""


class Announcer:
    """Publishes ends of sessions, and remembers which ones."""

    def __init__(self, settings: Settings, database: Database, metrics: Metrics) -> None:
        self._topic = settings.topic_session_completed
        self._database = database
        self._metrics = metrics
        self._publisher = Publisher(settings)
        self._told = Told()
        for status in STATUSES:  # a series that begins with its first count has no increase
            metrics.bridge_announced.labels(status)

    async def stop(self) -> None:
        """Close the publisher; what was not acknowledged was said so."""
        await self._publisher.stop()

    async def announce(
        self,
        sessions: Sequence[EndedSession],
        *,
        since: datetime,
        remembered_from: datetime,
        seen_open: Container[str] = (),
    ) -> None:
        """
        Publish those that are our business and were not announced; remember what the broker acknowledged.

        Args:
            since: What ended earlier is nobody's business.
            remembered_from: Sessions that were created earlier will not be met again.
            seen_open: These are our business whenever they ended.

        Raises:
            BrokerAway: Not all were acknowledged. Those that were do not go again.
            DatabaseAway: They may go again.
        """
        mine = [s for s in sessions if s.ended_at >= since or s.session_id in seen_open]
        wanted = [s for s in mine if not s.is_deleted]
        rows = await self._fetch(ANNOUNCED, [s.session_id for s in wanted]) if wanted else []
        known = {r["session_id"]: r["event_id"] for r in rows}
        new = await self._announceable({s.session_id: s for s in wanted if known.get(s.session_id) != event_id_of(s)})
        if not new:
            return
        results = await self._publish(new)
        done = [s for s, is_there in zip(new, results, strict=True) if is_there]
        is_whole = len(done) == len(new)
        # Of a page that will be read again everything is remembered.
        keep = [s for s in done if not is_whole or s.session_id in known or s.created_at >= remembered_from]
        if keep:
            columns = ([s.session_id for s in keep], [event_id_of(s) for s in keep], [s.created_at for s in keep])
            await self._fetch(REMEMBER, *columns)
        for s in done:
            self._metrics.bridge_announced.labels(s.status).inc()
        log.info("bridge.announced", sessions=len(done))
        if not is_whole:
            raise BrokerAway(
                f"{len(new) - len(done)} of {len(new)} events for topic {self._topic} were not acknowledged in time; "
                "look whether its brokers are up and enough replicas in sync"
            )

    async def _announceable(self, new: dict[str, EndedSession]) -> list[EndedSession]:
        """Without those whose id no event may carry, and without those that were erased here."""
        for session_id in [i for i in new if not SESSION_ID_PATTERN.fullmatch(i)]:
            if self._told.is_news(session_id):
                shown = id_for_people(session_id)
                effect = "this session is not scored"
                log.error("bridge.unusable_session_id", session_id=shown, length=len(session_id), effect=effect)
            del new[session_id]
        erased = {r["session_id"] for r in await self._fetch(ERASED, list(new))} if new else set()
        return [s for session_id, s in new.items() if session_id not in erased]

    async def _publish(self, sessions: Sequence[EndedSession]) -> list[bool]:
        """Says for each whether it is dealt with: acknowledged, or too large for the topic even without labels."""
        now = datetime.now(UTC)
        try:
            return await self._publisher.publish(self._topic, [_message(s, now) for s in sessions], PUBLISH_TIMEOUT_S)
        except TooLarge:
            log.warning("bridge.too_large", sessions=len(sessions), effect="each of these is sent alone")
        results: list[bool] = []
        for session in sessions:
            results.append(await self._publish_alone(session, now))
            if not results[-1]:
                break
        return results + [False] * (len(sessions) - len(results))

    async def _publish_alone(self, session: EndedSession, now: datetime) -> bool:
        for told in (session, replace(session, labels={})):
            try:
                return all(await self._publisher.publish(self._topic, [_message(told, now)], PUBLISH_TIMEOUT_S))
            except TooLarge:
                log.error("bridge.labels_left_out", session_id=session.session_id, reason="the topic takes less")
        log.error("bridge.passed_over", session_id=session.session_id, effect="this session is not scored")
        return True

    async def _fetch(self, statement: str, *arguments: object) -> list[Any]:
        sql = self._database.sql(statement)
        return await self._database.once(lambda c: c.fetch(sql, *arguments, timeout=CONTACT_S))


def event_id_of(session: EndedSession) -> uuid.UUID:
    """The same for the same end of the same session; another end is another event."""
    ended_us = (session.ended_at - BEGINNING) // timedelta(microseconds=1)
    return uuid.uuid5(_NAMESPACE, "\x1f".join((session.session_id, session.status, str(ended_us))))


def _message(session: EndedSession, now: datetime) -> tuple[bytes, bytes, Headers]:
    """Key, value and headers. Labels are the one part without a limit: too many of them stay away."""
    labels = dict(session.labels)
    if len(to_json(labels)) > MAX_LABELS_BYTES:
        log.error("bridge.labels_left_out", session_id=session.session_id)
        labels = {}
    event = {
        "type": "session.completed",
        "event_id": str(event_id_of(session)),
        "session_id": session.session_id,
        "status": session.status,
        "chain_id": session.chain_id,
        "alert_type": session.alert_type,
        "completed_at": session.ended_at.isoformat(),
        "labels": labels,
        "timestamp": now.isoformat(),
    }
    return session.session_id.encode(), to_json(event), cloudevents_headers(event)
