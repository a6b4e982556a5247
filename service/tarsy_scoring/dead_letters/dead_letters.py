"""
Messages that cannot be decoded or stored: kept whole with the reason, and replayed on request.

A dead letter holds the original bytes, key and headers, plus `scoring-error`, `scoring-error-message`,
`scoring-failed-at` and the original position (`scoring-original-*`). If the message is too large for the
dead-letter topic, PostgreSQL keeps the body and the dead letter carries `scoring-body-id` instead. PostgreSQL
keeps the newest bodies up to a bound; the original record stays named by topic, partition and offset. A
replayed message carries `scoring-original-*`, so that it is the same request as the original. Any producer
can write these headers, so they count only if PostgreSQL has the hash of this position and content.
"""

import base64
import hashlib
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from typing import Any

from tarsy_scoring.errors import InvalidMessage
from tarsy_scoring.events import Origin
from tarsy_scoring.kafka.connect import BrokerAway, Headers
from tarsy_scoring.kafka.consumer import Record
from tarsy_scoring.kafka.publisher import Publisher, TooLarge
from tarsy_scoring.postgres.database import Connection, Database

PREFIX = "scoring-"
# In the order of the fields of `Origin`.
ORIGIN_HEADERS = tuple(f"scoring-original-{name}" for name in ("topic", "partition", "offset", "timestamp"))
PUBLISH_TIMEOUT_S = 15.0
MOST_KEY_BYTES = 255  # of a session id; a longer key is kept with the body alone
_NAMESPACE = uuid.UUID("b4a1a5b0-4a0f-5c39-8f51-0f6e6d3a6a52")

ADD_BODY = """
INSERT INTO {schema}.dead_letter_bodies (body_id, key, value, headers) VALUES ($1, $2, $3, $4)
ON CONFLICT (body_id) DO NOTHING
"""

MOST_BODY_BYTES, MOST_BODY_BYTES_OF_KEY = 2**30, 2**27
# Bodies from the newest that exceeds a bound on drop out: that of all ($1), or that of their key ($2).
DROP_OLD_BODIES = """
DELETE FROM {schema}.dead_letter_bodies WHERE body_id IN (
  SELECT body_id FROM (
    SELECT body_id, sum(size) OVER (ORDER BY created_at DESC, body_id) AS bytes,
      sum(size) OVER (PARTITION BY key ORDER BY created_at DESC, body_id) AS bytes_of_key
    FROM {schema}.dead_letter_bodies CROSS JOIN LATERAL (SELECT coalesce(pg_column_size(key), 0)
      + coalesce(pg_column_size(value), 0) + pg_column_size(headers)) AS measured (size)
  ) AS bodies WHERE bytes > $1 OR bytes_of_key > $2
)
"""

BODY = "SELECT key, value, headers FROM {schema}.dead_letter_bodies WHERE body_id = $1"

# The table `dead_letters` has one row for each original position, with none of the content. All its times are
# those of the database, so that they can be compared.

Position = tuple[str, int, int]
"""Topic, partition and offset of the original message."""

NOTE_FAILURE = """
INSERT INTO {schema}.dead_letters (original_topic, original_partition, original_offset) VALUES ($1, $2, $3)
ON CONFLICT (original_topic, original_partition, original_offset) DO UPDATE SET failed_at = now()
"""

# The row may be missing: the failure was pruned.
ALLOW_REPLAY = """
INSERT INTO {schema}.dead_letters (original_topic, original_partition, original_offset, replay_hash)
VALUES ($1, $2, $3, $4)
ON CONFLICT (original_topic, original_partition, original_offset) DO UPDATE
  SET replay_hash = excluded.replay_hash
RETURNING now() AS at
"""

# $4: when the replay was allowed. Intake may have noted another failure since.
NOTE_REPLAY = """
UPDATE {schema}.dead_letters SET replayed_at = $4
WHERE original_topic = $1 AND original_partition = $2 AND original_offset = $3
"""

AT_POSITIONS = """
SELECT d.*, coalesce(replayed_at >= failed_at, false) AS is_replayed FROM {schema}.dead_letters d
JOIN unnest($1::text[], $2::bigint[], $3::bigint[]) AS o(topic, partition, "offset")
  ON d.original_topic = o.topic AND d.original_partition = o.partition AND d.original_offset = o."offset"
"""

COUNT_OPEN = """
SELECT count(*) FROM {schema}.dead_letters WHERE (replayed_at >= failed_at) IS NOT TRUE
"""


@dataclass(frozen=True, slots=True)
class Body:
    """An original message: key, value and the producer's headers."""

    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def parts(self) -> list[bytes]:
        """Everything that the producer wrote."""
        named = (part for name, value in self.headers for part in (name.encode(), value))
        return [self.key or b"", self.value or b"", *named]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """
    A dead letter as read from the topic.

    Args:
        place: `partition:offset` in the dead-letter topic.
        origin: None if the headers lack the original position.
        body_id: Set if PostgreSQL keeps the body; not always a UUID, if the letter is not ours.
        size_bytes: Of the value, and `value_hash` as well, also where the value was left out.
    """

    place: str
    error: str
    error_message: str
    failed_at: str
    origin: Origin | None
    key: bytes | None
    value: bytes | None
    headers: Headers
    body_id: str | None
    size_bytes: int
    value_hash: bytes


async def write_dead_letter(
    publisher: Publisher,
    topic: str,
    database: Database,
    record: Record,
    error: InvalidMessage,
    now: datetime,
    *,
    replayed_from: Origin | None = None,
) -> None:
    """
    Write the dead letter of `record` and wait until the brokers acknowledge it.

    Waits for the database too, if the body is too large for the topic.

    Args:
        replayed_from: The origin of a replayed record (see `find_replays`).

    Raises:
        BrokerAway: It could not be written, so the offset of the record must not be committed.
    """
    origin = replayed_from or position_of(record)
    added = [
        ("scoring-error", error.reason.encode()),
        ("scoring-error-message", str(error).encode("utf-8", "replace")),
        ("scoring-failed-at", now.astimezone(UTC).isoformat().replace("+00:00", "Z").encode()),
        *_origin_headers(origin),
    ]
    kept = [(k, v) for k, v in record.headers if not k.startswith(PREFIX)]
    try:
        letter = (record.key, record.value if record.value is not None else b"", [*kept, *added])
        acknowledged = await publisher.publish(topic, [letter], PUBLISH_TIMEOUT_S)
    except TooLarge:
        place = f"{origin.topic}:{origin.partition}:{origin.offset}:{origin.timestamp_ms}"
        body_id = uuid.uuid5(_NAMESPACE, place)  # a redelivered record gets the same body
        await _store_body(database, body_id, Body(record.key, record.value, kept))
        added.append(("scoring-body-id", str(body_id).encode()))
        key = record.key if len(record.key or b"") <= MOST_KEY_BYTES else None
        acknowledged = await publisher.publish(topic, [(key, b"", added)], PUBLISH_TIMEOUT_S)
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
        origin=_claimed_origin(record.headers),
        key=record.key,
        value=record.value,
        headers=[(k, v) for k, v in record.headers if not k.startswith(PREFIX)],
        body_id=found.get("scoring-body-id"),
        size_bytes=len(record.value or b""),
        value_hash=hashlib.sha256(record.value or b"").digest(),
    )


def group_by_origin(letters: Iterable[DeadLetter]) -> list[list[DeadLetter]]:
    """
    The letters of each original message, the one that failed last at the end.

    A letter without an origin stands alone. So does one with other content: any producer can write the origin
    of a genuine letter, and must not replace it.
    """
    groups = defaultdict[Any, list[DeadLetter]](list)
    for letter in letters:
        origin = letter.origin
        same = (position_in(origin), letter.value_hash, letter.body_id) if origin else letter.place
        groups[same].append(letter)
    return [sorted(group, key=lambda letter: letter.failed_at) for group in groups.values()]


async def replay(
    publisher: Publisher,
    database: Database,
    letter: DeadLetter,
    *,
    topics: Collection[str],
    is_erased: Callable[[Body], bool],
) -> None:
    """
    Send the original message to the original topic, under the original identity.

    The replay is recorded before it is sent, so that intake believes the headers of this message alone.

    Args:
        topics: The topics that intake reads; nothing is sent to others.
        is_erased: Whether the message is about a session that was erased.

    Raises:
        InvalidMessage: The letter lacks the original position, was in another topic, has no body any more, or
            is about an erased session.
        BrokerAway, TooLarge: It could not be sent.
        DatabaseAway: Nothing was sent.
    """
    origin, place = letter.origin, f"dead letter {letter.place}"
    if origin is None:
        raise InvalidMessage("no_origin", f"{place} does not say which topic it came from")
    if origin.topic not in topics:
        raise InvalidMessage(
            "foreign_topic",
            f"{place} says that it came from the topic {origin.topic!r}, and intake reads "
            f"{' and '.join(sorted(topics))} alone",
        )
    original = await original_of(database, letter)
    if original is None:
        raise InvalidMessage("no_body", f"{place}: the database does not have its message {letter.body_id!r}")
    if is_erased(original):
        raise InvalidMessage(
            "erased", f"{place} is about a session that was erased: send a new event if it is to be scored"
        )
    replay_hash = _replay_hash(origin, original.value)
    [allowed] = await database.fetch(ALLOW_REPLAY, *position_in(origin), replay_hash)
    message = (original.key, original.value, [*original.headers, *_origin_headers(origin)])
    if not all(await publisher.publish(origin.topic, [message], PUBLISH_TIMEOUT_S)):
        raise BrokerAway(f"topic {origin.topic} cannot be written")
    # Noted once it is sent: a letter that was not sent stays open.
    await database.fetch(NOTE_REPLAY, *position_in(origin), allowed["at"])


async def note_failure(database: Database, origin: Origin) -> None:
    """Record that a message became a dead letter. Waits for the database."""
    await database.persist(lambda c: c.execute(database.sql(NOTE_FAILURE), *position_in(origin)))


async def find_replays(database: Database, records: Sequence[Record]) -> Mapping[int, Origin]:
    """
    The origins of replayed records, by their place in `records`. Waits for the database.

    A record counts as replayed if a replay with this content was recorded for this position and topic.
    Others with the same headers are new records.
    """
    claimed: dict[int, tuple[Origin, bytes]] = {}
    for place, record in enumerate(records):
        origin = _claimed_origin(record.headers)
        if origin is not None and origin.topic == record.topic:
            claimed[place] = origin, _replay_hash(origin, record.value)
    if not claimed:
        return {}
    columns = _columns([position_in(origin) for origin, _ in claimed.values()])
    rows = await database.persist(lambda c: c.fetch(database.sql(AT_POSITIONS), *columns))
    recorded = {row["replay_hash"] for row in rows}
    return {place: origin for place, (origin, replay_hash) in claimed.items() if replay_hash in recorded}


async def original_of(database: Database, letter: DeadLetter) -> Body | None:
    """The message of a letter; None if its body was deleted or never existed. Raises: DatabaseAway."""
    if letter.body_id is None:
        return Body(letter.key, letter.value, letter.headers)
    try:
        rows = await database.fetch(BODY, uuid.UUID(letter.body_id))
    except ValueError:
        return None
    return body_of(dict(rows[0])) if rows else None


def body_of(row: Mapping[str, Any]) -> Body:
    """The body that a row of `dead_letter_bodies` holds."""
    return Body(row["key"], row["value"], [(k, base64.b64decode(v)) for k, v in row["headers"]])


async def _store_body(database: Database, body_id: uuid.UUID, body: Body) -> None:
    # PostgreSQL cannot store NUL characters.
    headers = [[k.replace("\0", "\ufffd"), base64.b64encode(v).decode()] for k, v in body.headers]

    async def store(connection: Connection) -> None:
        await connection.execute(database.sql(ADD_BODY), body_id, body.key, body.value, headers)
        await connection.execute(database.sql(DROP_OLD_BODIES), MOST_BODY_BYTES, MOST_BODY_BYTES_OF_KEY)

    await database.persist(store)


def position_of(record: Record) -> Origin:
    """The position at which a record was read."""
    return Origin(record.topic, record.partition, record.offset, record.timestamp_ms)


def _claimed_origin(headers: Headers) -> Origin | None:
    """The original position that headers claim; None if they lack it."""
    found = dict(headers)
    try:
        topic, *texts = (found[name].decode() for name in ORIGIN_HEADERS)
        partition, offset, timestamp_ms = (int(text) for text in texts)
    except (KeyError, ValueError):
        return None
    if "\0" in topic or not all(-1 <= number < 2**63 for number in (partition, offset, timestamp_ms)):
        return None  # no broker gives it, and PostgreSQL cannot store it
    return Origin(topic, partition, offset, timestamp_ms)


def preview(value: bytes | None, limit: int = 2000) -> str:
    """The first `limit` bytes of a message as text."""
    if not value:
        return "(empty)"
    text = value[:limit].decode("utf-8", "backslashreplace")
    return text + (f"... ({len(value)} bytes)" if len(value) > limit else "")


def _replay_hash(origin: Origin, value: bytes | None) -> bytes:
    place = "\x1f".join(map(str, astuple(origin)))
    return hashlib.sha256(f"{place}\x1f".encode() + (value or b"")).digest()


def _origin_headers(origin: Origin) -> Sequence[tuple[str, bytes]]:
    return [(name, str(value).encode()) for name, value in zip(ORIGIN_HEADERS, astuple(origin), strict=True)]


def position_in(origin: Origin) -> Position:
    """The position of a message, without the time."""
    return origin.topic, origin.partition, origin.offset


async def replays_of(database: Database, positions: Sequence[Position]) -> dict[Position, Any]:
    """
    Rows with `replayed_at` and `is_replayed`, since the last failure, of the dead letters with these original
    positions, as far as they are recorded. Raises: DatabaseAway.
    """
    rows = await database.fetch(AT_POSITIONS, *_columns(positions))
    return {(r["original_topic"], r["original_partition"], r["original_offset"]): r for r in rows}


async def count_open(database: Database) -> int:
    """Number of dead letters that were not replayed since they failed last. Raises: DatabaseAway."""
    return int((await database.fetch(COUNT_OPEN))[0]["count"])


def _columns(positions: Sequence[Position]) -> tuple[list[Any], ...]:
    return tuple([position[field] for position in positions] for field in range(3))
