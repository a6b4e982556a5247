"""The gateway follows its topic again after every failure."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from secured_kafka import Authority
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.kafka.connect import BrokerAway
from tarsy_scoring.live import gateway
from tarsy_scoring.live.gateway import Gateway
from tarsy_scoring.telemetry.metrics import Metrics


async def test_a_file_that_is_missing_for_a_moment_does_not_end_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In maintenance, files are replaced and brokers restart, often at the same time."""
    authority, stopping, tries = Authority(tmp_path, "ours"), asyncio.Event(), list[Mapping[str, Any]]()

    class Tail:
        """Its brokers are away; its first try removes the certificate file as well."""

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
