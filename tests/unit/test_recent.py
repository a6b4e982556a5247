"""A read that is used again: for how long, and by callers at the same time."""

import asyncio

import pytest

from tarsy_scoring.postgres.recent import Recent


class Source:
    """Counts its reads; they fail while `fails` is set."""

    def __init__(self) -> None:
        self.reads = 0
        self.fails = False

    async def read(self) -> int:
        self.reads += 1
        await asyncio.sleep(0)
        if self.fails:
            raise ConnectionError
        return self.reads


async def test_a_read_serves_all_callers_until_it_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("tarsy_scoring.postgres.recent.time.monotonic", lambda: now)
    recent = Recent(Source().read, 1.0)

    assert await asyncio.gather(*(recent() for _ in range(3))) == [1, 1, 1]
    now = 100.9
    assert await recent() == 1
    now = 101.0
    assert await asyncio.gather(*(recent() for _ in range(3))) == [2, 2, 2]


async def test_a_read_that_fails_is_tried_again() -> None:
    source = Source()
    recent = Recent(source.read, 60.0)
    source.fails = True
    with pytest.raises(ConnectionError):
        await recent()
    source.fails = False

    assert await recent() == 2
    assert await recent() == 2
