"""The gateway follows a topic again and again, and outlives what goes wrong in between."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from secured_kafka import Authority
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.kafka.clients import BrokerAway
from tarsy_scoring.live import gateway
from tarsy_scoring.live.gateway import Gateway
from tarsy_scoring.telemetry.metrics import Metrics


async def test_a_file_that_is_away_for_a_moment_ends_no_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are exchanged, brokers restart, and both at once is what maintenance looks like."""
    authority, stopping, tries = Authority(tmp_path, "ours"), asyncio.Event(), list[Mapping[str, Any]]()

    class Tail:
        """Finds its brokers away; after the first try the file is away, too."""

        def __init__(self, options: Mapping[str, Any], _topic: str, *, since: str) -> None:
            tries.append(options)

        async def follow(self, _take: Any, _stopping: Any) -> None:
            authority.file.unlink(missing_ok=True)
            if len(tries) == 3:
                stopping.set()
            raise BrokerAway("planted")

    monkeypatch.setattr(gateway, "Tail", Tail)
    monkeypatch.setattr(gateway, "POLL_S", 0.01)
    variables = {"BOOTSTRAP_SERVERS": "a:1", "SECURITY_PROTOCOL": "SSL", "CA_FILE": str(authority.file)}
    settings = load_settings({f"SCORING_KAFKA_{name}": value for name, value in variables.items()})

    await asyncio.wait_for(Gateway(settings, cast(Any, None), Metrics()).follow_topic(stopping), 30)

    assert len(tries) == 3
    assert "ssl_context" in tries[-1]
