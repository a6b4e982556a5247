"""
Where a batch that the library cannot read ends, from the bytes of the log.

The library reports neither the place nor the size of such a batch. A fetch of our own returns its bytes.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.memory_records import MemoryRecords

from tarsy_scoring.kafka.diagnose import UNREADABLE_LOGIN

FETCH_TIMEOUT_S = 10.0
FETCH_BYTES = 1_048_576
LARGEST_BATCH_BYTES = 64 * 1_048_576  # a damaged length may say up to 2 GiB
# All versions of the format begin alike: base offset (8 bytes), length of the rest (4), leader epoch (4),
# version.
OFFSET_BYTES, PREFIX_BYTES, VERSION_AT = 8, 12, 16
VERSION = 2


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch that holds an offset. `end` is the offset behind it."""

    end: int
    is_damaged: bool


async def find_batch(options: Mapping[str, Any], partition: TopicPartition, offset: int) -> Batch | None:
    """
    The batch that holds `offset`, or the first one behind it.

    The checksum covers the last offset that a batch states. So if it is wrong, the next batch in the log, or
    the end of the log, must confirm that offset.

    Args:
        options: The result of `connection_options`.

    Returns:
        None: The end of the batch cannot be proven, or the brokers did not answer within `FETCH_TIMEOUT_S`.
    """
    client = AIOKafkaClient(**options)
    try:
        async with asyncio.timeout(FETCH_TIMEOUT_S):
            await client.bootstrap()
            await client.set_topics([partition.topic])
            return await _find(client, partition, offset)
    except (KafkaError, OSError, TimeoutError, *UNREADABLE_LOGIN):
        return None
    finally:
        await client.close()


async def _find(client: AIOKafkaClient, partition: TopicPartition, offset: int) -> Batch | None:
    log, log_end = await _fetch(client, partition, offset, FETCH_BYTES)
    size = _size(log)
    if FETCH_BYTES - OFFSET_BYTES < size <= LARGEST_BATCH_BYTES:
        log, log_end = await _fetch(client, partition, offset, size + OFFSET_BYTES)
    if not VERSION_AT < size <= len(log) or log[VERSION_AT] != VERSION:
        return None
    batch = MemoryRecords(log[:size]).next_batch()
    end = batch.next_offset
    if batch.validate_crc():
        return Batch(end, is_damaged=False)
    if len(log) >= size + OFFSET_BYTES:
        following = _base(log[size:])
    elif end == log_end:
        following = log_end
    else:  # the last batch of a segment, where a fetch ends
        before, _ = await _fetch(client, partition, end - 1, FETCH_BYTES)
        behind, _ = await _fetch(client, partition, end, FETCH_BYTES)
        following = _base(behind) if _base(before) == _base(log) else None
    return Batch(end, is_damaged=True) if offset < end == following else None


async def _fetch(client: Any, partition: TopicPartition, offset: int, max_bytes: int) -> tuple[bytes, int]:
    """The log from the batch with `offset` on, at least that batch, and the end of the partition."""
    leader = client.cluster.leader_for_partition(partition)
    asked = (partition.topic, [(partition.partition, offset, max_bytes)])
    answer = await client.send(leader, FetchRequest(0, 1, max_bytes, 0, [asked]))
    [(_, [(_, error_code, log_end, *_, log)])] = answer.topics
    if error_code:
        raise for_code(error_code)
    return bytes(log or b""), log_end


def _base(log: bytes) -> int | None:
    """The base offset of the first batch; None: there is none."""
    return int.from_bytes(log[:OFFSET_BYTES], "big") if len(log) >= OFFSET_BYTES else None


def _size(log: bytes) -> int:
    """The size of the first batch, as it states it."""
    return PREFIX_BYTES + int.from_bytes(log[OFFSET_BYTES:PREFIX_BYTES], "big", signed=True)
