"""The metrics and the health of several processes at the address of the first."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tarsy_scoring.config.load import load_settings
from tarsy_scoring.processes import siblings
from tarsy_scoring.processes.siblings import listening_address, with_label
from tarsy_scoring.processes.supervisor import Member
from tarsy_scoring.telemetry.health import Health, HealthServer
from tarsy_scoring.telemetry.metrics import Metrics, declarations


def the_member(number: int, secret: str) -> Member:
    return Member(number, 2, secret, restarts=0, lifeline=-1)


def the_metrics(slots: int, restarts: int) -> Metrics:
    metrics = Metrics()
    metrics.slots.set(slots)
    metrics.process_restarts.inc(restarts)
    metrics.score_delay.labels("people").observe(2)
    return metrics


@asynccontextmanager
async def serving(member: Member, metrics: Metrics, missing: str | None = None) -> AsyncIterator[HealthServer]:
    async def check() -> str | None:
        return missing

    health = Health("starting")
    health.add(check)
    server = HealthServer(load_settings({"SCORING_METRICS_PORT": "0"}), metrics.registry, health, member)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def get(server: HealthServer, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{server.port}{path}") as answer:
        return answer.status, await answer.text()


def samples(text: str, name: str) -> dict[str, float]:
    found = [s for family in text_string_to_metric_families(text) for s in family.samples if s.name == name]
    return {s.labels["process"]: s.value for s in found if s.labels.get("asked_by", "people") == "people"}


async def test_one_address_shows_each_process_by_itself() -> None:
    async with (
        serving(the_member(1, "shown"), the_metrics(3, 0)) as first,
        serving(the_member(2, "shown"), the_metrics(2, 5)) as second,
    ):
        status, text = await get(first, "/metrics")
        ready = await get(first, "/readyz")
        alive = await get(first, "/healthz")

    assert (status, second.port) == (200, None)
    assert samples(text, "tarsy_scoring_slots") == {"1": 3.0, "2": 2.0}
    assert samples(text, "tarsy_scoring_process_restarts_total") == {"1": 0.0, "2": 5.0}
    assert samples(text, "tarsy_scoring_score_delay_seconds_count") == {"1": 1.0, "2": 1.0}
    assert text.count("# TYPE tarsy_scoring_slots gauge") == 1
    assert (ready[0], alive[0]) == (200, 200)


def test_the_label_alone_is_added() -> None:
    """Names, types, helps and values of all metrics stay."""
    text = generate_latest(the_metrics(3, 1).registry).decode()

    merged = with_label({1: text}).decode()

    without = re.sub(r'process="1",|,process="1"|{process="1"}', "", merged)
    assert without.splitlines() == text.splitlines()
    assert all(f"tarsy_scoring_{d.name.removesuffix('_total')}" in merged for d in declarations().values())


async def test_a_process_that_is_not_ready_keeps_the_command_from_being_ready() -> None:
    async with serving(the_member(1, "unready"), Metrics()) as first:
        away = await get(first, "/readyz"), await get(first, "/healthz")
        async with serving(the_member(2, "unready"), Metrics(), "the database does not answer"):
            unready = await get(first, "/readyz"), await get(first, "/healthz")

    assert '"process 2: not listening"' in away[0][1]
    assert '"process 2: the database does not answer"' in unready[0][1]
    assert [ready[0] for ready, _ in (away, unready)] == [503, 503]
    assert [alive[0] for _, alive in (away, unready)] == [200, 200]


async def test_a_process_that_hangs_fails_the_health_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its event loop takes no connection; the metrics of the others are still shown."""
    monkeypatch.setattr(siblings, "ANSWER_S", 0.2)
    member = the_member(2, "hangs")
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(serving(the_member(1, "hangs"), the_metrics(3, 0)))
        hanging = stack.enter_context(socket.socket(socket.AF_UNIX))
        hanging.bind(listening_address(member, 2))
        hanging.listen()

        alive, ready, metrics = [await get(first, path) for path in ("/healthz", "/readyz", "/metrics")]

    assert (alive[0], '"process": 2' in alive[1]) == (503, True)
    assert '"process 2: silent"' in ready[1]
    assert samples(metrics[1], "tarsy_scoring_slots") == {"1": 3.0}


async def test_others_have_ended_when_none_listens() -> None:
    others = siblings.Siblings(the_member(1, "ends"))
    async with serving(the_member(2, "ends"), Metrics()):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(others.ended(), 0.3)
    await asyncio.wait_for(others.ended(), 10)
