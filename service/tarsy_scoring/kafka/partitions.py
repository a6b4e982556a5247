"""
Takes records of each partition by itself, so that a batch which cannot be read costs other partitions
nothing.

`getmany` over several partitions drops the records of one if another one raises, after it has moved the
position of the first. So each partition is asked alone, without waiting, again and again.
"""

import asyncio
import itertools
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import (
    CorruptRecordException,
    IllegalStateError,
    KafkaError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    TopicAuthorizationFailedError,
    UnsupportedCodecError,
)

# An idle sweep over 12 partitions costs 50 us of CPU.
POLL_S = 0.02
# For prompt readers, until `FLOW_S` after the last record. The library asks a broker again only when all
# records of its last answer were taken, and an answer often has those of one partition alone. So an event
# that waits for those of other partitions would wait for `POLL_S` several times.
FLOW_POLL_S, FLOW_S = 0.002, 0.25
# Errors about a batch.
UNREADABLE = (CorruptRecordException, RecordTooLargeError, UnsupportedCodecError)
# Errors about one partition. The library raises each once and goes on; a new client would meet it again, and
# rebalance the group on the way.
_ONE_PARTITION = (*UNREADABLE, OffsetOutOfRangeError, TopicAuthorizationFailedError)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """
    A partition whose next batch cannot be read.

    Args:
        offset: The first offset that was not read; None if it is unknown, and so is the position.
    """

    partition: TopicPartition
    offset: int | None
    error: Exception


class PartitionReader:
    """
    Reads the assigned partitions of a started client, the least recently served ones first.

    Args:
        is_prompt: Look for records every `FLOW_POLL_S` while they flow. Otherwise each batch of `take` has
            what came within `POLL_S`, which costs its reader less.
    """

    def __init__(self, client: AIOKafkaConsumer, *, is_prompt: bool = False) -> None:
        self._client = client
        self._is_prompt = is_prompt
        self._flows_until_s = time.monotonic() + FLOW_S
        self._served_at_s: dict[TopicPartition, float] = {}
        self._one_by_one: set[TopicPartition] = set()

    async def take(
        self, wait_s: float, limit: int, skip: Collection[TopicPartition] = ()
    ) -> tuple[list[Any], list[Unreadable]]:
        """
        The library's records that have arrived, at most `limit`, and the partitions that cannot be read.

        Waits at most `wait_s` for the first of either, once partitions are assigned. Must not be cancelled
        while the client is used further. Positions of unreadable partitions do not move, unless they are
        unknown.

        Args:
            skip: Partitions that are not asked.

        Raises:
            KafkaError: The client cannot go on. Records that it returned in this call are lost to it.
        """
        ends_at_s = time.monotonic() + wait_s
        while True:
            records, unreadable = await self._sweep(limit, skip)
            if records or unreadable or time.monotonic() >= ends_at_s:
                return records, unreadable
            is_flowing = self._is_prompt and time.monotonic() < self._flows_until_s
            await asyncio.sleep(FLOW_POLL_S if is_flowing else POLL_S)

    async def _sweep(
        self, limit: int, skip: Collection[TopicPartition]
    ) -> tuple[list[Any], list[Unreadable]]:
        records: list[Any] = []
        unreadable: list[Unreadable] = []
        asked = sorted(self._client.assignment() - set(skip), key=lambda p: self._served_at_s.get(p, 0.0))
        for partition in asked:
            if len(records) == limit:
                break
            found = await self._ask(partition, limit - len(records))
            if isinstance(found, Unreadable):
                unreadable.append(found)
            elif found:
                records += found
                self._served_at_s[partition] = time.monotonic()
                self._flows_until_s = self._served_at_s[partition] + FLOW_S
        return records, unreadable

    async def _ask(self, partition: TopicPartition, limit: int) -> list[Any] | Unreadable:
        """
        Records of one partition.

        The library drops records that precede an unreadable batch in the same fetch, and fetches them again.
        So after an error they are taken one by one, until only that batch is left.
        """
        records: list[Any] = []
        is_second_look = partition in self._one_by_one
        try:
            while len(records) < limit:
                found = await self._client.getmany(partition, max_records=1 if is_second_look else limit)
                records += found.get(partition, ())
                if not found or not is_second_look:
                    break
        except Exception as error:
            if isinstance(error, KafkaError) and not isinstance(error, _ONE_PARTITION):
                raise
            # All else is what a codec or a parser raises for the bytes of this partition.
            self._one_by_one.add(partition)
            offset = await self._position(partition)
            if isinstance(error, RecordTooLargeError) and offset is not None:
                offset -= 1  # the library has moved over it
                self._client.seek(partition, offset)
            return Unreadable(partition, offset, error) if is_second_look and not records else records
        if not (in_place := self._in_place(partition, records)) and records:
            return Unreadable(
                partition, None, CorruptRecordException("its offsets are behind the end of the partition")
            )
        if len(in_place) < len(records):
            self._client.seek(partition, in_place[-1].offset + 1)
        if in_place:
            self._one_by_one.discard(partition)
        return in_place

    def _in_place(self, partition: TopicPartition, records: Sequence[Any]) -> list[Any]:
        """
        The records up to the first one behind the end of the partition.

        No checksum covers the offset of a batch. The library believes it, and drops the batch that follows.
        """
        end = self._client.highwater(partition) if records else None
        return [*itertools.takewhile(lambda record: end is None or record.offset < end, records)]

    async def _position(self, partition: TopicPartition) -> int | None:
        try:
            # A known position is returned without an await, so a timeout of 0 only cuts off unknown ones.
            async with asyncio.timeout(0):
                return int(await self._client.position(partition))
        except (TimeoutError, IllegalStateError):
            return None
