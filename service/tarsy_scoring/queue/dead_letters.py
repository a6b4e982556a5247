"""
Messages that nobody could understand: kept whole, with the reason, and replayed when somebody has mended it.

A dead letter holds the original bytes, key and headers, plus `scoring-error`, `scoring-error-message`,
`scoring-failed-at` and where the message stood (`scoring-original-*`). One that is too large for the
topic is kept in PostgreSQL, and its dead letter carries `scoring-body-id` in place of the bytes. A
replay carries `scoring-original-*`, so that it is the same request as the original.
"""

import base64
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tarsy_scoring.errors import InvalidMessage
from tarsy_scoring.events import Origin
from tarsy_scoring.kafka.clients import BrokerAway, Headers, Publisher, Record, TooLarge
from tarsy_scoring.records.scores import Body

PREFIX = "scoring-"
PUBLISH_TIMEOUT_S = 15.0
_NAMESPACE = uuid.UUID("b4a1a5b0-4a0f-5c39-8f51-0f6e6d3a6a52")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter as read back: `place` is `partition:offset` in the dead-letter topic."""

    place: str
    error: str
    error_message: str
    failed_at: str
    origin: Origin | None
    key: bytes | None
    value: bytes | None
    headers: Headers
    body_id: uuid.UUID | None


KeepBody = Callable[[uuid.UUID, Body], Awaitable[None]]


async def bury(
    publisher: Publisher, topic: str, record: Record, error: InvalidMessage, keep_body: KeepBody, now: datetime
) -> None:
    """
    Write the dead letter of `record`; returns when the brokers have it.

    Raises:
        BrokerAway: It could not be written; the record must not be committed.
    """
    origin = origin_of(record.headers) or Origin(record.topic, record.partition, record.offset, record.timestamp_ms)
    ours = _headers(error, origin, now)
    theirs = [(k, v) for k, v in record.headers if not k.startswith(PREFIX)]
    try:
        acknowledged = await publisher.publish(
            topic,
            [(record.key, record.value if record.value is not None else b"", [*theirs, *ours])],
            PUBLISH_TIMEOUT_S,
        )
    except TooLarge:
        place = f"{origin.topic}:{origin.partition}:{origin.offset}:{origin.timestamp_ms}"
        body_id = uuid.uuid5(_NAMESPACE, place)  # the same record again keeps the same body
        await keep_body(body_id, Body(record.key, record.value, theirs))
        ours.append(("scoring-body-id", str(body_id).encode()))
        acknowledged = await publisher.publish(topic, [(None, b"", ours)], PUBLISH_TIMEOUT_S)
    if not all(acknowledged):
        raise BrokerAway(f"the dead-letter topic {topic} cannot be written")


def read(record: Record) -> DeadLetter:
    """A record of the dead-letter topic."""
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
    Send the original message to its original topic again, under its original identity.

    Args:
        body: The kept message where the letter only refers to it.

    Raises:
        InvalidMessage: The letter does not say where it came from, or its body is gone.
        BrokerAway, TooLarge: It could not be sent.
    """
    if letter.origin is None:
        raise InvalidMessage("no_origin", f"dead letter {letter.place} does not say which topic it came from")
    if letter.body_id is not None and body is None:
        raise InvalidMessage(
            "no_body", f"dead letter {letter.place}: its message {letter.body_id} is not kept any more"
        )
    whole = body or Body(letter.key, letter.value, letter.headers)
    headers = [*whole.headers, *_origin_headers(letter.origin)]
    if not all(await publisher.publish(letter.origin.topic, [(whole.key, whole.value, headers)], PUBLISH_TIMEOUT_S)):
        raise BrokerAway(f"topic {letter.origin.topic} cannot be written")


def origin_of(headers: Headers) -> Origin | None:
    """Where a replayed or buried message first stood; None where the headers do not say it."""
    found = {k: v for k, v in headers if k.startswith("scoring-original-")}
    try:
        return Origin(
            topic=found["scoring-original-topic"].decode(),
            partition=int(found["scoring-original-partition"]),
            offset=int(found["scoring-original-offset"]),
            timestamp_ms=int(found["scoring-original-timestamp"]),
        )
    except (KeyError, ValueError):
        return None


def preview(value: bytes | None, limit: int = 2000) -> str:
    """The beginning of a message for people, base64 where it is no text."""
    if not value:
        return "(empty)"
    head = value[:limit]
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError:
        text = "base64:" + base64.b64encode(head).decode()
    return text + (f"... ({len(value)} bytes)" if len(value) > limit else "")


def _headers(error: InvalidMessage, origin: Origin, now: datetime) -> list[tuple[str, bytes]]:
    return [
        ("scoring-error", error.reason.encode()),
        ("scoring-error-message", str(error).encode("utf-8", "replace")),
        ("scoring-failed-at", now.astimezone(UTC).isoformat().replace("+00:00", "Z").encode()),
        *_origin_headers(origin),
    ]


def _origin_headers(origin: Origin) -> Sequence[tuple[str, bytes]]:
    return (
        ("scoring-original-topic", origin.topic.encode()),
        ("scoring-original-partition", str(origin.partition).encode()),
        ("scoring-original-offset", str(origin.offset).encode()),
        ("scoring-original-timestamp", str(origin.timestamp_ms).encode()),
    )
