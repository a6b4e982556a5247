"""`dead-letters` names brokers that lack the topic, and refuses what is no place."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from tarsy_scoring.commands import dead_letters as command_module
from tarsy_scoring.commands.dead_letters import dead_letters
from tarsy_scoring.errors import StartRefused


@pytest.fixture(autouse=True)
def no_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers without topics, and a database that is not asked."""

    async def has_topic(_options: Mapping[str, Any], _topic: str) -> bool:
        return False

    @asynccontextmanager
    async def parts(settings: Any) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace(settings=settings)

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
