"""
Reads each partition by itself, so that a batch which cannot be read costs other partitions nothing.

`getmany` over several partitions drops the records of one if another one raises, after it has moved the
position of the first. So each partition is asked alone, without waiting, again and again.
"""

import asyncio
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition, errors

# Options of every reader. Events of aborted and open transactions never happened: the brokers pass aborted ones
# over, and answer with nothing beyond the last stable offset, at which the oldest open transaction began.
READING = {"enable_auto_commit": False, "isolation_level": "read_committed"}
POLL_S = 0.1  # at 0.02 an idle worker with 12 partitions takes 23 ms of CPU in a second instead of 14
# Ends a take behind the record that reaches it. Callers handle and commit a take as one, so this bounds their
# time and memory, whatever producers send.
TAKE_BYTES = 256 * 1024
# Errors about one batch or partition. The library raises each once and goes on; a new client would meet it
# again, and rebalance the group on the way.
_ONE_BATCH = (errors.CorruptRecordException, errors.RecordTooLargeError, errors.UnsupportedCodecError)
_ONE_PARTITION = (errors.OffsetOutOfRangeError, errors.TopicAuthorizationFailedError)


def is_about_batch(error: Exception) -> bool:
    """Whether the error says that a batch cannot be read. Codecs and parsers raise errors of their own."""
    return isinstance(error, _ONE_BATCH) or not isinstance(error, errors.KafkaError)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """
    A partition whose next batch cannot be read.

    Args:
        offset: The first offset that was not read; None if it is unknown.
    """

    partition: TopicPartition
    offset: int | None
    error: Exception


class PartitionReader:
    """Reads the assigned partitions of a started client, the least recently served ones first."""

    def __init__(self, client: AIOKafkaConsumer) -> None:
        self._client = client
        self._served_at_s: dict[TopicPartition, float] = {}
        self._failed: set[TopicPartition] = set()  # raised an error behind the records that they gave last

    async def take(
        self, wait_s: float, limit: int, skip: Collection[TopicPartition] = ()
    ) -> tuple[list[Any], list[Unreadable]]:
        """
        The library's records that have arrived, at most `limit` or `TAKE_BYTES`, and the partitions that
        cannot be read.

        Waits at most `wait_s` for the first of either, once partitions are assigned. Must not be cancelled
        while the client is used further.

        Args:
            skip: Partitions that are not asked.

        Raises:
            KafkaError: The client cannot go on. Records that it returned in this call are lost to it.
        """
        ends_at_s = time.monotonic() + wait_s
        while True:
            records: list[Any] = []
            unreadable: list[Unreadable] = []
            most_bytes = TAKE_BYTES
            for partition in sorted(
                self._client.assignment() - set(skip), key=lambda p: self._served_at_s.get(p, 0.0)
            ):
                if len(records) == limit or most_bytes <= 0:
                    break
                found = await self._ask(partition, limit - len(records), most_bytes)
                if isinstance(found, Unreadable):
                    unreadable.append(found)
                elif found:
                    records += found
                    most_bytes -= _size_bytes(found)
                    self._served_at_s[partition] = time.monotonic()
            if records or unreadable or time.monotonic() >= ends_at_s:
                return records, unreadable
            await asyncio.sleep(POLL_S)

    async def _ask(self, partition: TopicPartition, limit: int, most_bytes: int) -> list[Any] | Unreadable:
        """
        Records of one partition, one by one: the library gives no bound in bytes, and drops records that
        precede an unreadable batch in the same call.
        """
        records: list[Any] = []
        is_second_look = partition in self._failed
        try:
            while len(records) < limit and most_bytes > 0:
                found = (await self._client.getmany(partition, max_records=1)).get(partition)
                if not found:
                    break
                records += found
                most_bytes -= _size_bytes(found)
        except Exception as error:
            if not is_about_batch(error) and not isinstance(error, _ONE_PARTITION):
                raise
            self._failed.add(partition)
            offset = await known_position(self._client, partition)
            if isinstance(error, errors.RecordTooLargeError) and offset is not None:
                offset -= 1  # the library has moved over it
                self._client.seek(partition, offset)
            return Unreadable(partition, offset, error) if is_second_look and not records else records
        if records:
            self._failed.discard(partition)
        return records


def _size_bytes(records: Iterable[Any]) -> int:
    return sum(len(record.value or b"") for record in records)


def stable_end(client: AIOKafkaConsumer, partition: TopicPartition) -> int | None:
    """The offset up to which records can be read, by the last answer; None before the first one."""
    stable: int | None = client.last_stable_offset(partition)
    # Brokers without transactions report none or -1.
    return client.highwater(partition) if stable in (None, -1) else stable


async def known_position(client: AIOKafkaConsumer, partition: TopicPartition) -> int | None:
    """The next offset that the client returns; None before the brokers answered with the first one."""
    try:
        # A known position is returned without an await, so a timeout of 0 only cuts off unknown ones.
        async with asyncio.timeout(0):
            return int(await client.position(partition))
    except (TimeoutError, errors.KafkaError):
        return None
