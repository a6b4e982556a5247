"""`dead-letters` names brokers that lack the topic, and refuses what is no place."""

import json
import tracemalloc
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from tarsy_scoring.commands import dead_letters as command_module
from tarsy_scoring.commands.dead_letters import dead_letters
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.kafka.consumer import Record


@pytest.fixture(autouse=True)
def no_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers without topics, and a database without rows."""

    async def has_topic(_options: Mapping[str, Any], _topic: str) -> bool:
        return False

    async def fetch(*_: Any) -> list[Any]:
        return []

    @asynccontextmanager
    async def parts(settings: Any) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace(settings=settings, database=SimpleNamespace(fetch=fetch))

    monkeypatch.setenv("SCORING_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setattr(command_module, "has_topic", has_topic)
    monkeypatch.setattr("tarsy_scoring.wiring.open_migrated_parts", parts)


def test_a_missing_topic_is_named() -> None:
    """Reading an absent topic would take 10 s to fail, so its existence is checked first."""
    ended = CliRunner().invoke(dead_letters, ["list"])

    assert isinstance(ended.exception, StartRefused)
    message = str(ended.exception)
    assert "there is no topic scoring-dead-letters at the brokers 127.0.0.1:1" in message
    assert "SCORING_CREATE_TOPICS=true" in message


@pytest.mark.parametrize("place", ["0", "0:-1", "0:1:2"])
@pytest.mark.parametrize("command", ["show", "replay"])
def test_an_invalid_place_is_refused(command: str, place: str) -> None:
    ended = CliRunner().invoke(dead_letters, [command, "--", place])

    assert ended.exit_code == 2
    assert "PARTITION:OFFSET" in ended.stderr


def test_a_list_of_letters_does_not_hold_their_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Together they may not fit into memory."""

    async def has_topic(_options: Mapping[str, Any], _topic: str) -> bool:
        return True

    async def read_topic(_settings: Any, topic: str) -> AsyncIterator[Record]:
        for n in range(100):
            yield Record(topic, 0, n, 1, None, bytes(1_000_000), (("large", bytes(1_000_000)),))

    monkeypatch.setattr(command_module, "has_topic", has_topic)
    monkeypatch.setattr(command_module, "read_topic", read_topic)
    tracemalloc.start()
    try:
        ended = CliRunner().invoke(dead_letters, ["list", "--json"], catch_exceptions=False)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    letters = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [letter["bytes"] for letter in letters] == [1_000_000] * 100
    assert peak_bytes < 20_000_000
