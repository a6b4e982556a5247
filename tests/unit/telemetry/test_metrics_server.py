"""The server of `/metrics` and of the probes."""

import socket

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from tables import table
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.errors import StartRefused
from tarsy_scoring.telemetry import metrics_server
from tarsy_scoring.telemetry.health import Health
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.telemetry.metrics_server import serve_metrics

ANY_PORT = load_settings({"SCORING_METRICS_PORT": "0"})


@table
async def test_answers(method: str, path: str, has_health: bool, status: int, body: str) -> None:
    health = Health("starting") if has_health else None
    async with (
        serve_metrics(ANY_PORT, Metrics().registry, health) as port,
        aiohttp.ClientSession() as http,
        http.request(method, f"http://127.0.0.1:{port}{path}") as answer,
    ):
        assert answer.status == status
        assert body in await answer.text()


async def test_a_ready_process_names_what_does_not_work() -> None:
    """A topic that is not read, or a provider that is not called, does not end readiness."""
    health = Health("starting")
    health.add(lambda: None)
    health.details = {"not_called": lambda: {"default": None}, "not_read": lambda: {"one": "invalid", "other": None}}
    async with (
        serve_metrics(ANY_PORT, Metrics().registry, health) as port,
        aiohttp.ClientSession() as http,
        http.get(f"http://127.0.0.1:{port}/readyz") as answer,
    ):
        assert (answer.status, await answer.json()) == (200, {"status": "ready", "not_read": {"one": "invalid"}})


@table
async def test_a_site_cannot_read_metrics_through_a_name_of_its_own(host: str, path: str, status: int) -> None:
    """Prometheus comes by an address or a configured name; probes tell nothing."""
    settings = load_settings({"SCORING_METRICS_PORT": "0", "SCORING_API_HOSTS": "worker.example"})
    async with (
        serve_metrics(settings, Metrics().registry, Health("starting")) as port,
        aiohttp.ClientSession(headers={"Host": host}) as http,
        http.get(f"http://127.0.0.1:{port}{path}") as answer,
    ):
        assert answer.status == status


async def test_a_default_port_that_is_taken_is_replaced_by_a_free_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was set is not: its scraper would find another process there."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(metrics_server, "API_METRICS_PORT", port)
        async with serve_metrics(load_settings({}), CollectorRegistry()) as other:
            assert other != port
        with pytest.raises(StartRefused, match="SCORING_METRICS_PORT"):
            async with serve_metrics(load_settings({"SCORING_METRICS_PORT": str(port)}), CollectorRegistry()):
                pass
