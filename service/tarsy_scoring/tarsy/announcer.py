"""
Publishes the ends of TARSy's sessions as `session-completed` events until the broker acknowledges them.

Announced ends are remembered in `bridge_announced` for as long as a sweep may meet the session again. The
event id is derived from session, status and time of the end, so a repeated event is the same event.
"""

import uuid
from collections.abc import Container, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog
from pydantic_core import to_json

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.events import SESSION_ID_PATTERN, cloudevents_headers
from tarsy_scoring.kafka.connect import BrokerAway, Headers
from tarsy_scoring.kafka.publisher import Publisher, TooLarge
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.tarsy.sessions import BEGINNING, STATUSES, EndedSession, printable_id
from tarsy_scoring.telemetry.metrics import Metrics

log = structlog.get_logger()

PUBLISH_TIMEOUT_S = 10.0
_NAMESPACE = uuid.UUID("0d9c1a8e-6f0b-5c55-8b8e-53a2f6c3d0a7")  # never change: it would make old events new

# Erased sessions are not announced: an event would reintroduce the session id.
ANNOUNCEABLE = """
SELECT session_id FROM unnest($1::text[], $2::uuid[]) AS e(session_id, event_id)
WHERE NOT EXISTS (SELECT FROM {schema}.bridge_announced a
                  WHERE a.session_id = e.session_id AND a.event_id = e.event_id)
  AND NOT EXISTS (SELECT FROM {schema}.erasures
                  WHERE session_hash = encode(sha256(convert_to(e.session_id, 'UTF8')), 'hex'))
"""

REMEMBER = """
INSERT INTO {schema}.bridge_announced (session_id, event_id, created_at)
SELECT * FROM unnest($1::text[], $2::uuid[], $3::timestamptz[])
ON CONFLICT (session_id) DO UPDATE SET event_id = excluded.event_id
"""


@dataclass(frozen=True, slots=True)
class Bookmark:
    """
    The row of `bridge_bookmark`.

    Args:
        since: Sessions that ended earlier are not announced.
        settled_before: Sessions created earlier are not read by another sweep.
    """

    since: datetime
    settled_before: datetime


class Announcer:
    """
    Publishes ends of sessions and remembers them.

    Args:
        publisher: Owned, and closed by `stop`; None: a new one.
    """

    def __init__(
        self, settings: Settings, database: Database, metrics: Metrics, publisher: Publisher | None = None
    ) -> None:
        self._topic = settings.topic_session_completed
        self._database = database
        self._metrics = metrics
        self._publisher = publisher or Publisher(settings)
        self._logged: set[str] = set()
        for status in STATUSES:  # a series that begins with the first count has no increase
            metrics.bridge_announced.labels(status)

    async def stop(self) -> None:
        """Close the publisher. Events without an acknowledgement were reported by `announce`."""
        await self._publisher.stop()

    async def announce(
        self, bookmark: Bookmark, sessions: Sequence[EndedSession], seen_open: Container[str] = ()
    ) -> None:
        """
        Publish the ends that were not announced before; remember those that the broker acknowledged.

        Deleted and erased sessions are left out, and so are sessions whose id no event may carry.

        Args:
            bookmark: Sessions that ended before `since` are left out.
            seen_open: Ids of sessions that are announced whenever they ended.

        Raises:
            BrokerAway: Not all were acknowledged. Those that were are not published again.
            DatabaseAway: Acknowledged events may be published again.
        """
        wanted = [
            s
            for s in sessions
            if not s.is_deleted and (s.ended_at >= bookmark.since or s.session_id in seen_open)
        ]
        new = await self._announceable(wanted) if wanted else []
        if not new:
            return
        acknowledged = await self._publish(new)
        done = [s for s, is_done in zip(new, acknowledged, strict=True) if is_done]
        ids, events = [s.session_id for s in done], [event_id_of(s) for s in done]
        await self._database.fetch(REMEMBER, ids, events, [s.created_at for s in done])
        for s in done:
            self._metrics.bridge_announced.labels(s.status).inc()
        log.info("bridge.announced", sessions=len(done))
        if len(done) < len(new):
            raise BrokerAway(
                f"{len(new) - len(done)} of {len(new)} events for topic {self._topic} were not "
                "acknowledged in time; "
                "check whether its brokers are up and enough replicas are in sync"
            )

    async def _announceable(self, sessions: Sequence[EndedSession]) -> list[EndedSession]:
        """The sessions with a new end, without those that were erased and whose id no event may have."""
        rows = await self._database.fetch(
            ANNOUNCEABLE, [s.session_id for s in sessions], [event_id_of(s) for s in sessions]
        )
        new = {r["session_id"] for r in rows}
        for session_id in [i for i in new if not SESSION_ID_PATTERN.fullmatch(i)]:
            new.remove(session_id)
            if session_id not in self._logged:
                self._logged.add(session_id)
                log.error(
                    "bridge.unusable_session_id",
                    session_id=printable_id(session_id),
                    length=len(session_id),
                    effect="this session is not scored",
                )
        return list({s.session_id: s for s in sessions if s.session_id in new}.values())

    async def _publish(self, sessions: Sequence[EndedSession]) -> list[bool]:
        """Publish; returns for each whether it is done: acknowledged, or too large by itself."""
        now = datetime.now(UTC)
        messages = [message_of(s, now) for s in sessions]
        try:
            return await self._publisher.publish(self._topic, messages, PUBLISH_TIMEOUT_S)
        except TooLarge as error:
            done, refused = list(error.acknowledged), error.refused
        for place, session in enumerate(sessions):
            if refused[place]:
                if len(sessions) > 1:  # a neighbour in the batch may be the one that is too large
                    [done[place]] = await self._publish([session])
                    continue
                log.error(
                    "bridge.too_large", session_id=session.session_id, effect="this session is not scored"
                )
                done[place] = True
        return done


def event_id_of(session: EndedSession) -> uuid.UUID:
    """The id of the event for this end of this session; another status or end time gives another id."""
    ended_us = (session.ended_at - BEGINNING) // timedelta(microseconds=1)
    return uuid.uuid5(_NAMESPACE, "\x1f".join((session.session_id, session.status, str(ended_us))))


def message_of(session: EndedSession, now: datetime) -> tuple[bytes, bytes, Headers]:
    """Key, value and headers of the Kafka message that announces the end of a session."""
    event = {
        "type": "session.completed",
        "event_id": str(event_id_of(session)),
        "session_id": session.session_id,
        "status": session.status,
        "chain_id": session.chain_id,
        "alert_type": session.alert_type,
        "completed_at": session.ended_at.isoformat(),
        "labels": session.labels,
        "timestamp": now.isoformat(),
    }
    return session.session_id.encode(), to_json(event), cloudevents_headers(event)
