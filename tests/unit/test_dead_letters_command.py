"""`dead-letters` names the brokers that are away or lack the topic, and what would help."""

import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
from click.testing import CliRunner

from tarsy_scoring.commands.dead_letters import dead_letters
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.kafka.connect import BrokerAway
from tarsy_scoring.kafka.consumer import Record

READ = "tarsy_scoring.commands.dead_letters.read_topic"
HAS = "tarsy_scoring.commands.dead_letters.has_topic"


@pytest.fixture
def closed_port(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of brokers at which no server listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused, and no other process takes it
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("SCORING_KAFKA_BOOTSTRAP_SERVERS", address)
        yield address


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics of the brokers."""
    there = ["scoring-dead-letters"]

    async def has(_options: Mapping[str, Any], topic: str) -> bool:
        return topic in there

    monkeypatch.setattr(HAS, has)
    return there


@pytest.mark.parametrize(
    "arguments", [["list"], ["list", "--json"], ["show", "0:1"], ["replay", "--all"]], ids="-".join
)
def test_brokers_that_are_away_are_named(closed_port: str, arguments: list[str]) -> None:
    ended = CliRunner().invoke(dead_letters, arguments)

    assert isinstance(ended.exception, BrokerAway)
    message = str(ended.exception)
    assert f"topic scoring-dead-letters at the brokers {closed_port}" in message
    assert "no answer" in message
    assert "correct SCORING_KAFKA_BOOTSTRAP_SERVERS" in message
    assert "Error" not in message
    assert "AddressFamily" not in message
    assert ended.stdout == ""


@pytest.mark.parametrize("arguments", [["list"], ["show", "0:1"], ["replay", "0:1"], ["replay", "--all"]], ids="-".join)
def test_a_missing_topic_is_named(
    closed_port: str, topics: list[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """Reading an absent topic would take 10 s to fail, so its existence is checked first."""

    async def never(_settings: Settings, _topic: str) -> AsyncIterator[Record]:
        raise AssertionError
        yield

    monkeypatch.setattr(READ, never)
    topics.clear()

    ended = CliRunner().invoke(dead_letters, arguments)

    assert isinstance(ended.exception, StartRefused)
    message = str(ended.exception)
    assert f"there is no topic scoring-dead-letters at the brokers {closed_port}" in message
    assert "SCORING_CREATE_TOPICS=true" in message


@pytest.mark.parametrize("place", ["x", "0", "0:", "0:-1", "0:1 ", "0:1:2"])
@pytest.mark.parametrize("command", ["show", "replay"])
def test_an_invalid_place_is_refused(closed_port: str, command: str, place: str) -> None:
    ended = CliRunner().invoke(dead_letters, [command, "--", place])

    assert ended.exit_code == 2
    assert "PARTITION:OFFSET" in ended.stderr
