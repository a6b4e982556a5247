"""Damage to the log files of an embedded Apache Kafka."""

import struct
from pathlib import Path

from infrastructure import Kafka, Topics


def segments(kafka: Kafka, topics: Topics, partition: int) -> list[Path]:
    """The files that hold a partition of the topic of ended sessions."""
    assert kafka.embedded is not None
    return list((kafka.embedded.directory / "data" / f"{topics.session_completed}-{partition}").glob("*.log"))


def damage(kafka: Kafka, topics: Topics, partition: int, offset: int, at: int = -3) -> None:
    """Flip the lowest bit of a byte of the batch that begins with `offset`; by default one of its last record."""
    for segment in segments(kafka, topics, partition):
        log, begin = segment.read_bytes(), 0
        while begin < len(log):
            base, length = struct.unpack_from(">qi", log, begin)
            end = begin + 12 + length
            if base == offset:
                place = range(begin, end)[at]
                with segment.open("r+b") as file:
                    file.seek(place)
                    file.write(bytes([log[place] ^ 1]))
                return
            begin = end
    raise AssertionError(f"no batch begins at {offset}")
