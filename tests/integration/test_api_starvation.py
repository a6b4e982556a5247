"""Probes and callers without access take no place of callers with access."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tarsy_scoring.config.load import load_settings
from tarsy_scoring.postgres import recent
from tarsy_scoring.web.app import create_app
from tarsy_scoring.web.context import AppContext
from tarsy_scoring.web.edge import middleware
from tarsy_scoring.wiring import open_parts

ENOUGH_S = 20.0
READS = {"Authorization": "Bearer reads"}


@pytest.fixture
async def site(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[FastAPI, AppContext]]:
    """The application with one token, two places for callers and two for probes."""
    monkeypatch.setattr(middleware, "MAX_REQUESTS_AT_ONCE", 2)
    monkeypatch.setattr(middleware, "MAX_PROBES_AT_ONCE", 2, raising=False)
    digest = hashlib.sha256(b"reads").hexdigest()
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps([{"name": "reader", "sha256": digest, "scope": "read"}]), encoding="utf-8")
    settings = load_settings({"SCORING_DATABASE_URL": database_url, "SCORING_API_TOKENS_FILE": str(tokens)})
    async with open_parts(settings) as parts:
        reads = parts.reader, parts.analytics
        context = AppContext(settings, parts.registry, parts.inbox, parts.leases, *reads, parts.metrics, None)
        app = create_app(context)

        @app.get("/test")
        async def answered() -> dict[str, str]:
            return {}

        yield app, context


def client_of(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", timeout=ENOUGH_S)


class Looks:
    """Replaces the statement of `/readyz`: counts its runs and holds each up until `go_on`."""

    def __init__(self) -> None:
        self.count = 0
        self.go_on = asyncio.Event()

    async def once(self, _work: Callable[..., Awaitable[Any]]) -> None:
        self.count += 1
        await self.go_on.wait()


async def test_probes_that_wait_for_the_database_take_no_place_of_a_caller(
    site: tuple[FastAPI, AppContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, context = site
    looks = Looks()
    monkeypatch.setattr(context.reader.database, "once", looks.once)
    monkeypatch.setattr(recent, "READY_TIMEOUT_S", 600.0)

    async with client_of(app) as client:
        asked = {asyncio.create_task(client.get("/readyz")) for _ in range(3)}
        done, waiting = await asyncio.wait(asked, timeout=ENOUGH_S, return_when=asyncio.FIRST_COMPLETED)
        answers = [await client.get("/test", headers=READS) for _ in range(2)]
        looks.go_on.set()
        late = [await task for task in waiting]

    assert [(task.result().status_code, task.result().headers["retry-after"]) for task in done] == [(503, "1")]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert [answer.status_code for answer in late] == [200, 200]
    assert looks.count == 1, "one look serves all probes that wait"


async def test_a_request_without_access_takes_no_place_of_a_caller(site: tuple[FastAPI, AppContext]) -> None:
    """Two peers do not take the refusals that the server sends them."""
    app, _ = site
    stuck, may_end = asyncio.Semaphore(0), asyncio.Event()

    async def send(_message: Any) -> None:
        stuck.release()
        await may_end.wait()

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": "GET", "path": "/test", "headers": [], "query_string": b"", "scheme": "http"}
    refused = [asyncio.create_task(app({**scope, "client": ("127.0.0.1", 9)}, receive, send)) for _ in range(2)]
    async with asyncio.timeout(ENOUGH_S):
        for _ in refused:
            await stuck.acquire()
        async with client_of(app) as client:
            answer = await client.get("/test", headers=READS)
        may_end.set()
        await asyncio.gather(*refused)

    assert answer.status_code == 200


async def test_answers_to_probes_and_refusals_of_access_end_their_connection(site: tuple[FastAPI, AppContext]) -> None:
    """A peer that sends many such requests and reads nothing cannot fill a buffer with the answers."""
    app, _ = site
    async with client_of(app) as client:
        paths = "/healthz", "/readyz", "/test"
        ends = {path: (await client.get(path)).headers.get("connection") for path in paths}
        kept = await client.get("/test", headers=READS)

    assert ends == dict.fromkeys(paths, "close")
    assert (kept.status_code, kept.headers.get("connection")) == (200, None)
