"""`dead-letters` while the brokers are away: which ones, and what would help."""

import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
from click.testing import CliRunner

from tarsy_scoring.commands.dead_letters import dead_letters
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.kafka.clients import BrokerAway, Record

READ = "tarsy_scoring.commands.dead_letters.read_topic"
HAS = "tarsy_scoring.commands.dead_letters.has_topic"


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address of brokers where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused, and nobody else's
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("SCORING_KAFKA_BOOTSTRAP_SERVERS", address)
        yield address


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics that the brokers have."""
    there = ["scoring-dead-letters"]

    async def has(_options: Mapping[str, Any], topic: str) -> bool:
        return topic in there

    monkeypatch.setattr(HAS, has)
    return there


@pytest.mark.parametrize(
    "arguments", [["list"], ["list", "--json"], ["show", "0:1"], ["replay", "--all"]], ids="-".join
)
def test_brokers_where_nobody_answers(nobody: str, arguments: list[str]) -> None:
    told = CliRunner().invoke(dead_letters, arguments)

    assert isinstance(told.exception, BrokerAway)
    message = str(told.exception)
    assert f"topic scoring-dead-letters at the brokers {nobody}" in message
    assert "no answer" in message
    assert "correct SCORING_KAFKA_BOOTSTRAP_SERVERS" in message
    assert "Error" not in message
    assert "AddressFamily" not in message
    assert told.stdout == ""


@pytest.mark.parametrize("arguments", [["list"], ["show", "0:1"], ["replay", "0:1"], ["replay", "--all"]], ids="-".join)
def test_a_topic_that_nobody_made(
    nobody: str, topics: list[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """Reading an absent topic would take 10 s to fail, so its existence is checked first."""

    async def never(_settings: Settings, _topic: str) -> AsyncIterator[Record]:
        raise AssertionError
        yield

    monkeypatch.setattr(READ, never)
    topics.clear()

    told = CliRunner().invoke(dead_letters, arguments)

    assert isinstance(told.exception, StartRefused)
    message = str(told.exception)
    assert f"there is no topic scoring-dead-letters at the brokers {nobody}" in message
    assert "SCORING_CREATE_TOPICS=true" in message


@pytest.mark.parametrize("place", ["x", "0", "0:", "0:-1", "0:1 ", "0:1:2"])
@pytest.mark.parametrize("command", ["show", "replay"])
def test_what_is_no_place_is_asked_wrongly(nobody: str, command: str, place: str) -> None:
    told = CliRunner().invoke(dead_letters, [command, "--", place])

    assert told.exit_code == 2
    assert "PARTITION:OFFSET" in told.stderr
