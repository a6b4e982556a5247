"""
Messages that cannot be decoded or stored: kept whole with the reason, and replayed on request.

A dead letter holds the original bytes, key and headers, plus `scoring-error`, `scoring-error-message`,
`scoring-failed-at` and the original position (`scoring-original-*`). If the message is too large for the
dead-letter topic, PostgreSQL keeps its body and the dead letter carries `scoring-body-id` instead. PostgreSQL
keeps the newest bodies up to a bound; the original record stays named by topic, partition and offset. A replayed
message carries `scoring-original-*`, so that it is the same request as the original.
"""

import base64
import uuid
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime

import structlog

from tarsy_scoring.errors import InvalidMessage
from tarsy_scoring.events import Origin
from tarsy_scoring.kafka.connect import BrokerAway, Headers
from tarsy_scoring.kafka.consumer import Record
from tarsy_scoring.kafka.publisher import Publisher, TooLarge
from tarsy_scoring.postgres.database import Connection, Database

log = structlog.get_logger()

PREFIX = "scoring-"
# In the order of the fields of `Origin`.
ORIGIN_HEADERS = tuple(f"scoring-original-{name}" for name in ("topic", "partition", "offset", "timestamp"))
PUBLISH_TIMEOUT_S = 15.0
_NAMESPACE = uuid.UUID("b4a1a5b0-4a0f-5c39-8f51-0f6e6d3a6a52")

ADD_BODY = """
INSERT INTO {schema}.dead_letter_bodies (body_id, key, value, headers) VALUES ($1, $2, $3, $4)
ON CONFLICT (body_id) DO NOTHING
"""

MOST_BODIES, MOST_BODY_BYTES = 10_000, 2**30
# Bodies from the newest that exceed the bound on drop out. Another worker may be dropping them already.
DROP_OLD_BODIES = """
DELETE FROM {schema}.dead_letter_bodies WHERE body_id IN (
  SELECT body_id FROM {schema}.dead_letter_bodies WHERE body_id IN (
    SELECT body_id FROM (
      SELECT body_id, row_number() OVER newest AS number, sum(size) OVER newest AS bytes
      FROM {schema}.dead_letter_bodies CROSS JOIN LATERAL (
        SELECT coalesce(pg_column_size(key), 0) + coalesce(pg_column_size(value), 0) + pg_column_size(headers) AS size
      ) AS stored WINDOW newest AS (ORDER BY created_at DESC, body_id)
    ) AS bodies WHERE number > $1 OR bytes > $2
  ) FOR UPDATE SKIP LOCKED
)
"""

BODY = "SELECT key, value, headers FROM {schema}.dead_letter_bodies WHERE body_id = $1"


@dataclass(frozen=True, slots=True)
class Body:
    """An original message: key, value and the headers of its producer."""

    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """
    A dead letter as read from its topic.

    Args:
        place: `partition:offset` in the dead-letter topic.
        origin: None if its headers lack the original position.
        body_id: Set if PostgreSQL keeps the body.
    """

    place: str
    error: str
    error_message: str
    failed_at: str
    origin: Origin | None
    key: bytes | None
    value: bytes | None
    headers: Headers
    body_id: uuid.UUID | None


async def write_dead_letter(
    publisher: Publisher, topic: str, database: Database, record: Record, error: InvalidMessage, now: datetime
) -> None:
    """
    Write the dead letter of `record` and wait until the brokers acknowledge it.

    Waits for the database too, if the body is too large for the topic. If not even the headers fit, PostgreSQL
    alone keeps the body, and the log names it.

    Raises:
        BrokerAway: It could not be written, so the offset of the record must not be committed.
    """
    origin = origin_of(record.headers) or Origin(record.topic, record.partition, record.offset, record.timestamp_ms)
    added = [
        ("scoring-error", error.reason.encode()),
        ("scoring-error-message", str(error).encode("utf-8", "replace")),
        ("scoring-failed-at", now.astimezone(UTC).isoformat().replace("+00:00", "Z").encode()),
        *_origin_headers(origin),
    ]
    if record.last_offset is not None:
        added.append(("scoring-original-last-offset", str(record.last_offset).encode()))
    kept = [(k, v) for k, v in record.headers if not k.startswith(PREFIX)]
    try:
        letter = (record.key, record.value if record.value is not None else b"", [*kept, *added])
        acknowledged = await publisher.publish(topic, [letter], PUBLISH_TIMEOUT_S)
    except TooLarge:
        place = f"{origin.topic}:{origin.partition}:{origin.offset}:{origin.timestamp_ms}"
        body_id = uuid.uuid5(_NAMESPACE, place)  # a redelivered record gets the same body
        await _store_body(database, body_id, Body(record.key, record.value, kept))
        added.append(("scoring-body-id", str(body_id).encode()))
        try:
            acknowledged = await publisher.publish(topic, [(None, b"", added)], PUBLISH_TIMEOUT_S)
        except TooLarge:
            log.error(
                "intake.dead_letter_not_published",
                topic=topic,
                body_id=str(body_id),
                place=place,
                effect="only the table dead_letter_bodies has this message",
                advice="raise max.message.bytes of the topic: not even the headers of a dead letter fit",
            )
            return
    if not all(acknowledged):
        raise BrokerAway(f"the dead-letter topic {topic} cannot be written")


def read_dead_letter(record: Record) -> DeadLetter:
    """Read a record of the dead-letter topic; absent headers become `unknown` or empty."""
    found = {k: v.decode("utf-8", "replace") for k, v in record.headers if k.startswith(PREFIX)}
    return DeadLetter(
        place=f"{record.partition}:{record.offset}",
        error=found.get("scoring-error", "unknown"),
        error_message=found.get("scoring-error-message", ""),
        failed_at=found.get("scoring-failed-at", ""),
        origin=origin_of(record.headers),
        key=record.key,
        value=record.value,
        headers=[(k, v) for k, v in record.headers if not k.startswith(PREFIX)],
        body_id=uuid.UUID(found["scoring-body-id"]) if "scoring-body-id" in found else None,
    )


async def replay(publisher: Publisher, letter: DeadLetter, body: Body | None) -> None:
    """
    Send the original message to its original topic, under its original identity.

    Args:
        body: The stored body, if the letter refers to one.

    Raises:
        InvalidMessage: The letter lacks its original position, its body was deleted, or it was a damaged batch.
        BrokerAway, TooLarge: It could not be sent.
    """
    if letter.origin is None:
        raise InvalidMessage("no_origin", f"dead letter {letter.place} does not say which topic it came from")
    if letter.error == "damaged_batch":
        raise InvalidMessage("no_body", f"dead letter {letter.place}: {letter.error_message}")
    if letter.body_id is not None and body is None:
        raise InvalidMessage("no_body", f"dead letter {letter.place}: its message {letter.body_id} was deleted")
    original = body or Body(letter.key, letter.value, letter.headers)
    message = (original.key, original.value, [*original.headers, *_origin_headers(letter.origin)])
    if not all(await publisher.publish(letter.origin.topic, [message], PUBLISH_TIMEOUT_S)):
        raise BrokerAway(f"topic {letter.origin.topic} cannot be written")


async def load_body(database: Database, body_id: uuid.UUID) -> Body | None:
    """A stored body; None if it was deleted. Raises: DatabaseAway."""
    row = await database.once(lambda c: c.fetchrow(database.sql(BODY), body_id))
    if row is None:
        return None
    return Body(row["key"], row["value"], [(k, base64.b64decode(v)) for k, v in row["headers"]])


async def _store_body(database: Database, body_id: uuid.UUID, body: Body) -> None:
    # PostgreSQL cannot store NUL characters.
    headers = [[k.replace("\0", "\ufffd"), base64.b64encode(v).decode()] for k, v in body.headers]

    async def store(connection: Connection) -> None:
        await connection.execute(database.sql(ADD_BODY), body_id, body.key, body.value, headers)
        await connection.execute(database.sql(DROP_OLD_BODIES), MOST_BODIES, MOST_BODY_BYTES)

    await database.persist(store)


def origin_of(headers: Headers) -> Origin | None:
    """The original position of a replayed message or a dead letter; None if the headers lack it."""
    found = dict(headers)
    try:
        topic, *numbers = (found[name].decode() for name in ORIGIN_HEADERS)
        return Origin(topic, *(int(number) for number in numbers))
    except (KeyError, ValueError):
        return None


def preview(value: bytes | None, limit: int = 2000) -> str:
    """The first `limit` bytes of a message as text, or as base64 if they are not UTF-8."""
    if not value:
        return "(empty)"
    head = value[:limit]
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError:
        text = "base64:" + base64.b64encode(head).decode()
    return text + (f"... ({len(value)} bytes)" if len(value) > limit else "")


def _origin_headers(origin: Origin) -> Sequence[tuple[str, bytes]]:
    return [(name, str(value).encode()) for name, value in zip(ORIGIN_HEADERS, astuple(origin), strict=True)]
