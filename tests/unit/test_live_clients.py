"""The clients of the gateway's benchmark: they find every event that is lost, repeated or out of order."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import cast

import pytest
from benchmarks.gateway import Listener, Stream
from websockets.frames import Frame, Opcode

NUMBER = 40


class FakeTransport:
    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


def frame(text: bytes, opcode: Opcode = Opcode.TEXT) -> bytes:
    return Frame(opcode, text).serialize(mask=False)


# Lengths with one byte, three bytes and nine bytes in the header.
EVENTS = [
    frame(b'{"position":%d,"timestamp_us":%d,"x":"%s"}' % (n, 1000 * n, b"x" * size))
    for n, size in zip(range(1, NUMBER + 1), itertools.cycle((1, 300, 70_000)))
]
HEAD = b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + frame(b'{"type":"subscription.confirmed"}')


def received(stream: Stream, data: bytes, sizes: Sequence[int]) -> Listener:
    """A client that received `data` in pieces of these sizes, again and again."""
    listener, sizes_again = Listener("host", False, stream), itertools.cycle(sizes)
    listener.connection_made(cast(asyncio.BaseTransport, FakeTransport()))
    while data:
        size = next(sizes_again)
        listener.data_received(data[:size])
        data = data[size:]
    return listener


@pytest.mark.parametrize("first", [(1_000_000,), (7, 1, 4000)], ids=["at-once", "in-pieces"])
@pytest.mark.parametrize("later", [(1_000_000,), (5, 90_000), (1, 2, 3, 20_000)], ids=["at-once", "two", "small"])
def test_the_same_events_are_complete_however_they_are_cut(first: tuple[int, ...], later: tuple[int, ...]) -> None:
    stream = Stream()
    clients = [received(stream, HEAD + b"".join(EVENTS), sizes) for sizes in (first, later)]
    assert [*stream.positions] == [*range(1, NUMBER + 1)]
    assert bytes(stream.text) == b"".join(EVENTS)
    for client in clients:
        assert client.is_subscribed
        assert not client.is_wrong
        assert client.at == len(stream.text)
        assert len([*client.ages_us(0)]) == NUMBER
        assert len([*client.ages_us(30)]) == NUMBER - 30


@pytest.mark.parametrize("sizes", [(1_000_000,), (1, 7, 30_000)], ids=["at-once", "in-pieces"])
def test_a_ping_between_events_is_answered_and_no_part_of_the_stream(sizes: tuple[int, ...]) -> None:
    stream = Stream()
    received(stream, HEAD + b"".join(EVENTS), (1_000_000,))
    data = HEAD + b"".join([*EVENTS[:3], frame(b"abcd", Opcode.PING), *EVENTS[3:]])
    client = received(stream, data, sizes)
    assert not client.is_wrong
    assert client.at == len(stream.text)
    assert cast(FakeTransport, client._transport).written[-1].endswith(b"abcd")


@pytest.mark.parametrize("sizes", [(1_000_000,), (1, 7, 30_000)], ids=["at-once", "in-pieces"])
@pytest.mark.parametrize(
    "events",
    [EVENTS[:3] + EVENTS[4:], [*EVENTS[:3], EVENTS[2], *EVENTS[3:]], [EVENTS[1], EVENTS[0], *EVENTS[2:]], EVENTS[:-1]],
    ids=["lost", "repeated", "swapped", "last-lost"],
)
def test_a_wrong_series_is_found(events: list[bytes], sizes: tuple[int, ...]) -> None:
    stream = Stream()
    received(stream, HEAD + b"".join(EVENTS), (1_000_000,))
    client = received(stream, HEAD + b"".join(events), sizes)
    assert client.is_wrong or client.at < len(stream.text)
