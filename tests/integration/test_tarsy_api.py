"""TARSy's API as a source: the timeline equals that of its database, and every way to be unreadable."""

import asyncio
import contextlib
import itertools
import tracemalloc
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest
from aiohttp import web
from yarl import URL

from tarsy_rest import TarsyRest
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.errors import ConfigurationError, SessionTooLarge, TimelineUnavailable
from tarsy_scoring.tarsy.timeline_api import TarsyApi
from tarsy_scoring.timeline.sources import open_timeline_source
from tarsy_scoring_lab.tarsy import load_session
from tarsy_sessions import session

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)


@pytest.fixture
async def tarsy(tarsy_database_url: str) -> AsyncIterator[TarsyRest]:
    async with TarsyRest(tarsy_database_url) as tarsy:
        yield tarsy


@pytest.fixture
async def source(tarsy: TarsyRest) -> AsyncIterator[TarsyApi]:
    source = TarsyApi(tarsy.url, timeout_s=20)
    yield source
    await source.close()


@pytest.fixture
async def connection(tarsy_database_url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(tarsy_database_url)
    yield connection
    await connection.close()


async def test_the_token_is_read_for_each_call(
    tarsy_database_url: str, connection: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A projected token changes while the worker runs."""
    await load_session(connection, session())
    file = tmp_path / "token"
    file.write_text("first\n")
    monkeypatch.setenv("SCORING_TIMELINE_API_TOKEN_FILE", str(file))
    async with TarsyRest(tarsy_database_url, token="first") as tarsy:
        settings = load_settings(
            {"SCORING_TIMELINE_SOURCE": "tarsy-api", "SCORING_TIMELINE_API_URL": tarsy.url + "/api/v1/"}
        )
        source = open_timeline_source(settings)
        assert (await source.find_session("one")).chain_id == "kubernetes"
        tarsy.token = "second"
        with pytest.raises(TimelineUnavailable, match="SCORING_TIMELINE_API_TOKEN") as refusal:
            await source.find_session("one")
        assert "first" not in str(refusal.value)
        file.write_text("second")
        assert (await source.find_session("one")).status == "completed"
        await source.close()


def answering(status: int = 200, text: str = "", location: str | None = None) -> Any:
    """A handler that gives every request this answer."""

    async def answer(_: web.Request) -> web.Response:
        headers = {"Location": location} if location else {}
        return web.Response(status=status, text=text, content_type="application/json", headers=headers)

    return answer


async def _cut(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b"{")
    assert request.transport is not None
    request.transport.close()
    return response


async def _silent(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError


def _endless(status: int = 200, *, is_compressed: bool = False) -> Any:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status)
        if is_compressed:
            response.enable_compression()
        await response.prepare(request)
        while True:
            await response.write(b" " * 100_000)

    return answer


UNUSABLE_ANSWERS = {
    "login page": (answering(302, location="/oauth2/sign_in"), "login page"),
    "HTML": (answering(text="<html>"), "contract"),
    "another shape": (answering(text='[{"unexpected": true}]'), "contract"),
    "empty object": (answering(text="{}"), "contract"),
    "too deep": (answering(text="[" * 100_000), "contract"),
    "404 of a proxy": (answering(404, "default backend - 404"), "HTTP 404"),
    "404 of a router": (answering(404, '{"message": "Not Found"}'), "HTTP 404"),
    "404 of a gateway": (answering(404, '{"message": "no Route matched with those values"}'), "HTTP 404"),
    "500": (answering(500, '{"message": "Internal Server Error"}'), "HTTP 500"),
    "endless 500": (_endless(500), "HTTP 500"),
    "cut": (_cut, "cannot reach"),
    "silent": (_silent, "took longer than"),
}


async def test_an_unusable_answer_is_unavailable(connection: Any, tarsy: TarsyRest) -> None:
    """Whichever call fails, there is no timeline and never a part of one."""
    await load_session(connection, session())
    for answer, reason in UNUSABLE_ANSWERS.values():
        source = TarsyApi(tarsy.url, timeout_s=0.5 if answer is _silent else 20)
        for part in ("/one", "/timeline", "/trace", "/trace/mcp"):
            tarsy.instead = {part: answer}
            with pytest.raises(TimelineUnavailable, match=reason):
                await source.fetch_timeline("one")
        await source.close()


@pytest.mark.parametrize("is_compressed", [False, True], ids=["plain", "compressed"])
async def test_an_answer_without_end_is_a_session_that_is_too_large(
    connection: Any, tarsy: TarsyRest, is_compressed: bool
) -> None:
    """No more of it is read than the limit, compressed or not."""
    await load_session(connection, session())
    source = TarsyApi(tarsy.url, timeout_s=20, max_session_bytes=2_000_000)
    for part in ("/one", "/timeline", "/trace", "/trace/mcp"):
        tarsy.instead = {part: _endless(is_compressed=is_compressed)}
        tracemalloc.start()
        try:
            with pytest.raises(SessionTooLarge, match="the session one"):
                await source.fetch_timeline("one")
            assert tracemalloc.get_traced_memory()[1] < 20_000_000
        finally:
            tracemalloc.stop()
    tarsy.instead = {"/one": _endless()}
    with pytest.raises(SessionTooLarge):
        await source.find_session("one")
    tarsy.instead = {"/sessions": _endless()}
    with pytest.raises(TimelineUnavailable, match="larger than 64 MiB"):
        await source.check()
    await source.close()


async def test_the_limit_holds_for_all_answers_about_a_session(connection: Any, tarsy: TarsyRest) -> None:
    """No single answer exceeds it."""
    large = session(alert_data="x" * 60_000)
    large["stages"][0]["executions"][0]["events"][0]["content"] = "y" * 60_000
    await load_session(connection, large)
    for max_bytes, is_read in ((150_000, True), (100_000, False)):
        source = TarsyApi(tarsy.url, timeout_s=20, max_session_bytes=max_bytes)
        with contextlib.nullcontext() if is_read else pytest.raises(SessionTooLarge):
            await source.fetch_timeline("one")
        await source.close()


@pytest.fixture
async def alter(tarsy: TarsyRest, tarsy_database_url: str) -> AsyncIterator[Callable[..., None]]:
    """Lets a test change answers by their path."""
    async with TarsyRest(tarsy_database_url) as original, aiohttp.ClientSession() as http:

        def call(part: str, change: Callable[[Any], Any], end: str) -> None:
            async def answer(request: web.Request) -> web.Response:
                async with http.get(URL(original.url + request.raw_path, encoded=True)) as response:
                    said = await response.json()
                said = change(said) if request.path.endswith(end) else said
                return web.json_response(said, status=response.status)

            tarsy.instead[part] = answer

        yield call


def _in_session(key: str, value: Any) -> Callable[[Any], Any]:
    return lambda said: said | {key: value}


def _in_stage(key: str, value: Any) -> Callable[[Any], Any]:
    return lambda said: said | {"stages": [stage | {key: value} for stage in said["stages"]]}


def _in_execution(key: str, value: Any) -> Callable[[Any], Any]:
    return lambda said: _in_stage("executions", [e | {key: value} for e in said["stages"][0]["executions"]])(said)


def _in_event(key: str, value: Any) -> Callable[[Any], Any]:
    return lambda said: [event | {key: value} for event in said]


async def test_a_required_value_that_is_no_text_is_unavailable(
    connection: Any, tarsy: TarsyRest, source: TarsyApi, alter: Callable[..., None]
) -> None:
    await load_session(connection, session())
    for end, within, keys in (
        ("/one", _in_session, ("id", "status", "alert_data")),
        ("/one", _in_stage, ("stage_name", "stage_type", "status")),
        ("/one", _in_execution, ("agent_name", "status")),
        ("/timeline", _in_event, ("event_type", "status", "content")),
    ):
        for key, value in itertools.product(keys, (12, ["x"])):
            tarsy.instead.clear()
            alter("/one", within(key, value), end)
            with pytest.raises(TimelineUnavailable, match="contract"):
                await source.fetch_timeline("one")


async def test_a_failed_call_cancels_the_others(connection: Any, tarsy: TarsyRest) -> None:
    """A call that hangs would keep its connection until no session has one."""
    await load_session(connection, session())
    tarsy.instead |= {"/trace": UNUSABLE_ANSWERS["500"][0], "/timeline": _silent}
    source = TarsyApi(tarsy.url, timeout_s=20)
    before = asyncio.all_tasks()
    with pytest.raises(TimelineUnavailable, match="HTTP 500"):
        await source.fetch_timeline("one")
    ours = {t for t in asyncio.all_tasks() - before if "TarsyApi" in repr(t.get_coro())}
    assert not ours
    await source.close()


async def test_finished_sessions_come_in_pages(connection: Any, source: TarsyApi) -> None:
    """Each is listed once, with equal times of creation as well."""
    for number in range(220):
        began = NOON if number < 130 else NOON + timedelta(seconds=number)
        ends = {"created_at": began.isoformat(), "completed_at": (began + timedelta(minutes=5)).isoformat()}
        await load_session(connection, session(f"s-{number:03}", stages=[], available_tools=[], **ends))
    await load_session(connection, session("old", completed_at="2026-03-01T00:00:00Z", stages=[], available_tools=[]))
    await load_session(connection, session("runs", status="in_progress", stages=[], available_tools=[]))

    assert sorted([s.session_id async for s in source.finished_sessions(NOON)]) == [f"s-{n:03}" for n in range(220)]


def test_an_incomplete_or_unsafe_configuration_is_refused() -> None:
    https = {"URL": "https://tarsy"}
    for given, reason in (
        ({}, "SCORING_TIMELINE_API_URL is not set"),
        ({"URL": "tarsy:8080"}, "expected https"),
        ({"URL": "https://user:secret@tarsy"}, "without user, password"),
        ({"URL": "https://tarsy:99999"}, "expected https"),
        (https | {"CA_FILE": "/nowhere"}, "CA_FILE"),
        (https | {"TOKEN_FILE": "/nowhere"}, "TOKEN_FILE"),
        (https | {"TOKEN": "a", "TOKEN_FILE": "/b"}, "keep one"),
    ):
        environ = {f"SCORING_TIMELINE_API_{name}": value for name, value in given.items()}
        with pytest.raises(ConfigurationError, match=reason) as error:
            open_timeline_source(load_settings({"SCORING_TIMELINE_SOURCE": "tarsy-api"} | environ))
        assert "secret" not in str(error.value)
