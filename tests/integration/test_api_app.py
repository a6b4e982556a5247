"""Rules for every request whatever its route, and the server, on a real database and real sockets."""

import asyncio
import hashlib
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from fastapi import FastAPI
from fastapi.responses import JSONResponse, StreamingResponse
from prometheus_client import generate_latest
from pydantic import BaseModel
from structlog.testing import capture_logs

from infrastructure import wait_until
from processes import Process
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError, StartRefused
from tarsy_scoring.web.app import create_app
from tarsy_scoring.web.context import AppContext
from tarsy_scoring.web.edge import middleware, problems
from tarsy_scoring.web.edge.problems import MEDIA_TYPE
from tarsy_scoring.web.server import address_of, listen, serve
from tarsy_scoring.wiring import open_parts

SECRET = "planted-secret-of-a-session"
NOWHERE = "postgresql://nobody:planted-password@127.0.0.1:9/none"
UNKNOWN_SCORE = "/api/v1/scoring/scores/0d9f7b1c-3a52-4f5e-9c1a-6f2d6d1f8e10"
PROBES = ("/healthz", "/readyz")


class Body(BaseModel):
    number: int


def add_routes(app: FastAPI) -> None:
    """Routes that fail, or show their input."""

    @app.post("/test/body")
    async def body(body: Body) -> dict[str, int]:
        return {"number": body.number}

    @app.get("/test/fails/{name}")
    async def fails(name: str) -> None:
        raise RuntimeError(SECRET)

    @app.get("/test/breaks-off")
    async def breaks_off() -> StreamingResponse:
        async def content() -> AsyncIterator[str]:
            yield "begun"
            raise RuntimeError(SECRET)

        return StreamingResponse(content())

    @app.get("/test/own-headers")
    async def own_headers() -> JSONResponse:
        return JSONResponse({}, headers={"Content-Security-Policy": "default-src 'self'", "Cache-Control": "max-age=9"})


@asynccontextmanager
async def application(
    database_url: str, env: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[FastAPI, AppContext]]:
    """The application as `tarsy-scoring api` builds it, with test routes."""
    settings = load_settings({"SCORING_DATABASE_URL": database_url} | dict(env or {}))
    async with open_parts(settings) as parts:
        reads = parts.reader, parts.analytics
        site = AppContext(settings, parts.registry, parts.inbox, parts.leases, *reads, parts.metrics, None)
        app = create_app(site)
        add_routes(app)
        yield app, site


def client_of(app: FastAPI, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost", **options)


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[FastAPI]:
    async with application(database_url) as (app, _):
        yield app


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app) as client:
        yield client


def problem(answer: httpx.Response, status: int, title: str) -> dict[str, Any]:
    """The problem document of an answer."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, MEDIA_TYPE), answer.text
    document: dict[str, Any] = answer.json()
    assert (document["status"], document["title"]) == (status, title)
    assert document["type"].startswith("urn:tarsy-scoring:problem:")
    assert document["instance"] == f"urn:tarsy-scoring:request:{answer.headers['x-request-id']}"
    assert document["detail"]
    return document


# --- problems ------------------------------------------------------------------------------------------


async def test_refusals_of_the_framework_are_problem_documents(client: httpx.AsyncClient) -> None:
    problem(await client.get("/nowhere"), 404, "Not found")
    problem(await client.get("/healthz/"), 404, "Not found")
    problem(await client.delete("/test/body"), 405, "Method not allowed")


async def test_a_malformed_request_is_refused_without_repeating_values(client: httpx.AsyncClient) -> None:
    cases: list[tuple[str, list[str | int]]] = [
        (f'{{"number": "{SECRET}"}}', ["body", "number"]),
        (f'{{"{SECRET}": 1}}', ["body", "number"]),
        (f"{{{SECRET}", ["body", 1]),
        ("", ["body"]),
    ]
    for content, loc in cases:
        refused = await client.post("/test/body", content=content, headers={"content-type": "application/json"})
        document = problem(refused, 422, "Malformed request")
        assert [fault["loc"] for fault in document["errors"]] == [loc]
        assert all(set(fault) == {"loc", "msg"} and fault["msg"] for fault in document["errors"])
        assert SECRET not in refused.text
    # An unknown key is repeated only if it is a plain name.
    path = "/api/v1/scoring/sessions/session-1/score"
    document = problem(await client.post(path, json={"forse": True, "<b>": 1}), 422, "Malformed request")
    assert [fault["loc"] for fault in document["errors"]] == [["body", "forse"], ["body", "?"]]


async def test_a_body_over_the_limit_is_refused(client: httpx.AsyncClient) -> None:
    json_body = {"content-type": "application/json"}
    padded = b'{"number": 1}'.ljust(problems.MAX_BODY_BYTES)
    assert (await client.post("/test/body", content=padded, headers=json_body)).json() == {"number": 1}
    problem(await client.post("/test/body", content=padded + b" ", headers=json_body), 413, "Content too large")

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b" " * (problems.MAX_BODY_BYTES // 2)

    refused = await client.post("/test/body", content=chunks(), headers=json_body)
    assert "content-length" not in refused.request.headers
    assert "65,536 bytes" in problem(refused, 413, "Content too large")["detail"]


async def test_a_body_that_never_arrives_times_out(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "BODY_TIMEOUT_S", 0.01)
    sent: list[Any] = []
    scope = {"type": "http", "method": "POST", "path": "/test/body", "raw_path": b"/test/body", "query_string": b""}
    scope |= {"headers": [(b"content-type", b"application/json")], "client": ("127.0.0.1", 1), "http_version": "1.1"}

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    await asyncio.wait_for(app(scope, receive, send), 30)
    assert sent[0]["status"] == 408


async def test_an_unexpected_error_is_reported_without_its_text(client: httpx.AsyncClient) -> None:
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        failed = await client.get("/test/fails/someone")
    problem(failed, 500, "Internal error")
    assert SECRET not in failed.text + str(lines)
    (line,) = (line for line in lines if line["event"] == "api.failed")
    assert (line["error"], line["request_id"]) == ("RuntimeError", failed.headers["x-request-id"])
    assert "fails" in line["at"][-1]
    assert "Traceback" not in failed.text


async def test_an_answer_that_breaks_off_is_cut(client: httpx.AsyncClient) -> None:
    with pytest.raises(middleware.ResponseCut) as cut:
        await client.get("/test/breaks-off")
    assert cut.value.__suppress_context__


# --- every answer --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/healthz", "/nowhere", "/test/fails/x", "/openapi.json", UNKNOWN_SCORE])
async def test_every_answer_has_the_security_headers(client: httpx.AsyncClient, path: str) -> None:
    headers = (await client.get(path)).headers
    assert {name: headers[name] for name in middleware.SECURITY_HEADERS} == middleware.SECURITY_HEADERS
    assert "frame-ancestors 'none'" in headers["content-security-policy"]


async def test_a_route_may_have_its_own_headers(client: httpx.AsyncClient) -> None:
    headers = (await client.get("/test/own-headers")).headers
    assert (headers["content-security-policy"], headers["cache-control"]) == ("default-src 'self'", "max-age=9")
    assert headers["x-content-type-options"] == "nosniff"


async def test_browsers_get_problems_as_pages(client: httpx.AsyncClient) -> None:
    accept = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    page = await client.get("/nowhere", headers=accept)
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "there is nothing at this address" in page.text.lower()
    assert page.headers["x-request-id"] in page.text
    problem(await client.get(UNKNOWN_SCORE, headers=accept), 404, "Unknown score")


async def test_only_a_well_formed_request_id_of_the_caller_is_kept(client: httpx.AsyncClient) -> None:
    usable = "0af7651916cd43dd8448eb211c80319c"
    for given in (usable, "a b", "x" * 65, '"},{"event":"forged'):
        ids = {(await client.get("/healthz", headers={"x-request-id": given})).headers["x-request-id"] for _ in "12"}
        assert ids == {usable} if given == usable else len(ids - {given}) == 2


async def test_one_line_per_request_without_values(client: httpx.AsyncClient) -> None:
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        answer = await client.get("/test/own-headers", params={"q": SECRET}, headers={"cookie": SECRET, "x-a": SECRET})
        await client.get("/nowhere/" + "x" * 1000)
        await client.get("/healthz")
    logged = [line for line in lines if line["event"] == "api.request"]
    assert [(line["route"], line["status"], line["log_level"]) for line in logged] == [
        ("/test/own-headers", 200, "info"),
        ("unmatched", 404, "info"),
        ("/healthz", 200, "debug"),
    ]
    assert logged[0]["request_id"] == answer.headers["x-request-id"]
    assert logged[0]["duration_ms"] >= 0
    assert SECRET not in str(lines)
    assert len(logged[1]["path"]) <= middleware.PATH_SHOWN


async def test_metrics_count_by_route(app: FastAPI, client: httpx.AsyncClient) -> None:
    for number in range(5):
        await client.get(f"/test/fails/{number}")
        await client.get(f"/nowhere/{number}")
        await client.request(f"BREW{number}", "/healthz")
    text = generate_latest(app.state.context.metrics.registry).decode()
    lines = [line for line in text.splitlines() if line.startswith("tarsy_scoring_api_requests_total{")]
    assert sorted(lines) == [
        'tarsy_scoring_api_requests_total{method="GET",route="/test/fails/{name}",status="500"} 5.0',
        'tarsy_scoring_api_requests_total{method="GET",route="unmatched",status="404"} 5.0',
        'tarsy_scoring_api_requests_total{method="other",route="/healthz",status="405"} 5.0',
    ]
    assert 'tarsy_scoring_api_request_duration_seconds_count{route="/test/fails/{name}"} 5.0' in text


# --- access in front of routes -------------------------------------------------------------------------


@pytest.fixture
def tokens_env(tmp_path: Path) -> dict[str, str]:
    """Tokens `reads` and `scores`."""
    path = tmp_path / "tokens.json"
    entries = [("reader", "reads", "read"), ("writer", "scores", "score")]
    path.write_text(
        json.dumps([{"name": n, "sha256": hashlib.sha256(t.encode()).hexdigest(), "scope": s} for n, t, s in entries]),
        encoding="utf-8",
    )
    return {"SCORING_API_TOKENS_FILE": str(path), "SCORING_API_HOST": "0.0.0.0"}


async def test_every_request_but_probes_is_authenticated_first(database_url: str, tokens_env: dict[str, str]) -> None:
    async with application(database_url, tokens_env) as (app, _), client_of(app) as client:
        for path in PROBES:
            assert (await client.get(path)).status_code == 200
        for method, path in [("GET", "/nowhere"), ("GET", "/openapi.json"), ("GET", "/test/own-headers")]:
            problem(await client.request(method, path), 401, "Not authenticated")
        json_body = {"content-type": "application/json"}
        refused = await client.post("/test/body", content="{", headers=json_body)
        problem(refused, 401, "Not authenticated")
        assert refused.headers["www-authenticate"].startswith("Bearer ")
        reads, scores = {"authorization": "Bearer reads"}, {"authorization": "Bearer scores"}
        assert (await client.get("/test/own-headers", headers=reads)).status_code == 200
        problem(await client.post("/test/body", content='{"number": 1}', headers=json_body | reads), 403, "Not allowed")
        assert (await client.post("/test/body", json={"number": 1}, headers=scores)).status_code == 200


# --- probes --------------------------------------------------------------------------------------------


async def test_probes_while_the_database_answers(app: FastAPI, client: httpx.AsyncClient) -> None:
    assert (await client.get("/healthz")).json() == {"status": "running"}
    ready = await client.get("/readyz")
    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
    assert app.state.context.metrics.registry.get_sample_value("tarsy_scoring_database_up") == 1.0
    problem(await client.get("/metrics"), 404, "Not found")  # it has a port of its own


async def test_probes_and_answers_while_the_database_is_away() -> None:
    async with application(NOWHERE) as (app, site), client_of(app) as client:
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 503
        assert site.metrics.registry.get_sample_value("tarsy_scoring_database_up") == 0.0
        refused = await client.get(UNKNOWN_SCORE)
        problem(refused, 503, "Database away")
        assert int(refused.headers["retry-after"]) > 0
        assert "127.0.0.1" not in refused.text


async def test_the_process_is_not_ready_until_the_start_is_complete(app: FastAPI, client: httpx.AsyncClient) -> None:
    app.state.has_started = False
    assert (await client.get("/readyz")).status_code == 503
    assert (await client.get("/healthz")).status_code == 200


# --- the server ----------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(app: FastAPI, env: Mapping[str, str] | None = None) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """A server on any port: its address, and the event that stops it. Leaving the context stops it."""
    settings = load_settings({"SCORING_API_PORT": "0", "SCORING_DRAIN_TIMEOUT_S": "5"} | dict(env or {}))
    listening, stopping = listen(settings), asyncio.Event()
    task = asyncio.create_task(serve(app, settings, listening, stopping))
    try:
        yield address_of(listening), stopping
    finally:
        stopping.set()
        await asyncio.wait_for(task, 30)


async def test_a_stop_finishes_requests_and_accepts_no_new_ones(app: FastAPI) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()

    @app.get("/test/slow")
    async def slow() -> dict[str, str]:
        began.set()
        await may_end.wait()
        return {"status": "whole"}

    drain = {"SCORING_DRAIN_TIMEOUT_S": "60"}
    async with serving(app, drain) as (address, stopping), httpx.AsyncClient(base_url=address, timeout=60) as client:
        assert (await client.get("/healthz")).status_code == 200
        asked = asyncio.create_task(client.get("/test/slow"))
        await began.wait()
        stopping.set()

        async def is_closed() -> bool:
            try:
                async with httpx.AsyncClient(base_url=address) as other:
                    await other.get("/healthz")
            except httpx.TransportError:
                return True
            return False

        await wait_until(is_closed, 30, "new connections are refused")
        may_end.set()
        answer = await asked
        assert (answer.status_code, answer.json()) == (200, {"status": "whole"})
        assert "server" not in answer.headers


async def test_a_websocket_handshake_is_authenticated_like_a_request(
    database_url: str, tokens_env: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async with application(database_url, tokens_env) as (app, _), serving(app) as (address, _):
        upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        upgrade["sec-websocket-key"] = "dGhlIHNhbXBsZSBub25jZQ=="
        async with httpx.AsyncClient(base_url=address, headers=upgrade) as client:
            problem(await client.get("/api/v1/ws"), 401, "Not authenticated")
            foreign = {"authorization": "Bearer reads", "origin": "https://evil.example"}
            problem(await client.get("/api/v1/ws", headers=foreign), 403, "Another site")
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def test_an_invalid_handshake_is_refused(app: FastAPI) -> None:
    upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    upgrade["sec-websocket-key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    async with serving(app) as (address, _), httpx.AsyncClient(base_url=address, headers=upgrade) as client:
        for path in ("/ws", "/api/v1/ws/", "/api/v1/scoring/sessions"):
            problem(await client.get(path), 404, "Not found")
        refused = await client.get("/api/v1/ws", headers={"sec-websocket-version": "12"})
        assert refused.status_code in (400, 426)
        broken = await client.get("/api/v1/ws", headers={"sec-websocket-key": "no"})
        assert broken.status_code == 400
        async with httpx.AsyncClient(base_url=address) as without_upgrade:
            plain = await without_upgrade.get("/api/v1/ws")
        problem(plain, 426, "Upgrade required")
        assert plain.headers["upgrade"] == "websocket"


def settings_for(host: str, port: int) -> Settings:
    return load_settings({"SCORING_API_HOST": host, "SCORING_API_PORT": str(port)})


def test_an_address_that_cannot_be_bound_is_named() -> None:
    for host in ("127.0.0.1", "::1", "[::1]"):
        with listen(settings_for(host, 0)) as taken:
            port = taken.getsockname()[1]
            assert address_of(taken) in (f"http://127.0.0.1:{port}", f"http://[::1]:{port}")
            with pytest.raises(StartRefused, match=f"{port}.*SCORING_API_PORT"):
                listen(settings_for(host, port))
    for nowhere in ("192.0.2.1", "a..b"):
        with pytest.raises(ConfigurationError, match="SCORING_API_HOST"):
            listen(settings_for(nowhere, 0))


def test_a_host_that_does_not_resolve_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: dict[int, type[Exception]] = {socket.EAI_NONAME: ConfigurationError, socket.EAI_AGAIN: StartRefused}
    for number, kind in kinds.items():

        def getaddrinfo(*_: object, number: int = number, **__: object) -> None:
            raise socket.gaierror(number, "it is not known")

        with monkeypatch.context() as patched:
            patched.setattr(socket, "getaddrinfo", getaddrinfo)
            with pytest.raises(kind, match=r"nowhere\.example.*SCORING_API_HOST"):
                listen(settings_for("nowhere.example", 0))


async def test_the_unspecified_address_listens_on_ipv4_and_ipv6(app: FastAPI) -> None:
    async with serving(app, {"SCORING_API_HOST": "::"}) as (address, _), httpx.AsyncClient() as client:
        port = address.rpartition(":")[2]
        for host in ("127.0.0.1", "[::1]"):
            assert (await client.get(f"http://{host}:{port}/healthz")).status_code == 200


# --- the command ---------------------------------------------------------------------------------------


async def test_the_command_waits_for_its_database(tmp_path: Path) -> None:
    own = {k: v for k, v in os.environ.items() if not k.startswith(("SCORING_", "OPENAI_"))}
    ports = {"SCORING_API_PORT": "0", "SCORING_METRICS_PORT": "0"}
    env = ports | {"SCORING_LOG_FORMAT": "json", "SCORING_DATABASE_URL": NOWHERE}
    process = Process([sys.executable, "-m", "tarsy_scoring", "api"], own | env, tmp_path, "api")
    try:
        address = (await process.says("api.listening", 30))["address"]
        await process.says("database.away", 30)
        async with httpx.AsyncClient(base_url=address) as client:
            answers = [await client.get(path) for path in ("/healthz", "/readyz", UNKNOWN_SCORE, "/metrics")]
        assert [answer.status_code for answer in answers] == [200, 503, 503, 404]
        port = (await process.says("api.listening"))["metrics_port"]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            answers = [await client.get(path) for path in ("/metrics", "/healthz")]
        assert [answer.status_code for answer in answers] == [200, 404]
        assert 'tarsy_scoring_role{role="api"} 1.0' in answers[0].text
        assert process.stdout == "", "a log of JSON has no other lines"
        assert await process.stop() == 0
        assert "planted-password" not in process.log
    finally:
        if process.status is None:
            await process.kill()
