"""A timeline source that is away is waited for; a session that it cannot give while it answers fails alone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from attempting import Service, open_service, watched
from builders import connected
from fakes import ANALYSIS, MISSING_TOOLS, FakeJudge
from infrastructure import wait_until
from tarsy_rest import TarsyRest
from tarsy_scoring.judge.verdict import Question, Turn
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.scoring import attempt, watched_source
from tarsy_scoring.scoring.worker import Worker
from tarsy_scoring.tarsy.timeline_api import TarsyApi
from tarsy_scoring.tarsy.timeline_db import TarsyDatabase
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.timeline.model import TimelineSource
from tarsy_scoring_lab.tarsy import load_session
from tarsy_sessions import session

SLOTS, QUEUED = 4, 40


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "BACKOFF_FIRST_S", 0.05)
    monkeypatch.setattr(watched_source, "COOL_DOWN_S", 0.05)
    monkeypatch.setattr(watched_source, "MOST_COOL_DOWN_S", 0.2)


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    async with open_service(database_url, SCORING_SLOTS=str(SLOTS)) as opened:
        yield opened


class HeldJudge(FakeJudge):
    """Answers every question once `may_answer` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()

    async def ask(self, question: Question, **_: Any) -> Turn:
        self._answers = [ANALYSIS if question.kind == "analysis" else MISSING_TOOLS]
        turn = await super().ask(question)
        await self.may_answer.wait()
        return turn


@dataclass(frozen=True)
class Tarsy:
    """A TARSy deployment that a test can make unreachable."""

    source: TimelineSource
    go_away: Callable[[], Awaitable[Any]]
    come_back: Callable[[], Awaitable[Any]]


@contextlib.asynccontextmanager
async def a_database(url: str) -> AsyncIterator[Tarsy]:
    """Away: it accepts no connections, as during maintenance, and has ended those that there were."""
    parts = urlsplit(url)
    name = parts.path[1:]
    async with connected(urlunsplit(parts._replace(path="/postgres"))) as admin:

        async def allow(connections: bool) -> None:
            await admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS {connections}')
            if not connections:
                cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1"
                await admin.execute(cut, name)

        source = TarsyDatabase(url)
        yield Tarsy(source, lambda: allow(False), lambda: allow(True))
        await source.close()


@contextlib.asynccontextmanager
async def working(
    service: Service, source: TimelineSource, judge: FakeJudge, metrics: Metrics | None = None
) -> AsyncIterator[Worker]:
    """A worker at work."""
    metrics = metrics or Metrics()
    one = watched(source, metrics)
    limits = Limits(service.database, service.settings)
    worker = Worker(
        settings=service.settings,
        leases=service.leases,
        scorer=service.scorer({"default": judge}, source=one),
        source=one,
        metrics=metrics,
        limits=limits,
    )
    stopping = asyncio.Event()
    running = asyncio.create_task(worker.run(stopping))
    try:
        yield worker
    finally:
        stopping.set()
        await running


async def scores(service: Service) -> dict[str, tuple[str, str | None, int, int]]:
    """Status, reason to wait, attempts and burned attempts of every session's score."""
    query = "SELECT session_id, status, waiting_reason, attempt, attempts_burned FROM session_scores"
    rows = await service.database.once(lambda c: c.fetch(query))
    return {session_id: tuple(rest) for session_id, *rest in rows}  # type: ignore[misc]


async def all_are(service: Service, *statuses: str) -> bool:
    return {status for status, *_ in (await scores(service)).values()} <= {*statuses}


async def queue(service: Service, tarsy_database_url: str, *session_ids: str, **changes: Any) -> None:
    async with connected(tarsy_database_url) as connection:
        for session_id in session_ids:
            await load_session(connection, session(session_id, **changes))
            await service.request(session_id)


async def test_scores_wait_for_a_source_that_is_away(service: Service, tarsy_database_url: str) -> None:
    """Of many queued scores none fails or burns an attempt, few are claimed, and all complete afterwards."""
    await queue(service, tarsy_database_url, *(f"s{n}" for n in range(QUEUED)))
    judge, metrics = HeldJudge(), Metrics()

    def is_away() -> float | None:
        return metrics.registry.get_sample_value("tarsy_scoring_source_away")

    async with a_database(tarsy_database_url) as tarsy:
        with capture_logs() as lines:
            async with working(service, tarsy.source, judge, metrics) as worker:
                await wait_until(lambda: len(judge.asked) == SLOTS, 30, "every slot judges")
                await tarsy.go_away()
                judge.may_answer.set()
                await wait_until(is_away, 30, "the outage is noticed")
                checks = 0
                check = tarsy.source.check

                async def counted() -> None:
                    nonlocal checks
                    checks += 1
                    await check()

                tarsy.source.check = counted
                await wait_until(lambda: checks >= 6, 30, "the source is checked again and again")
                during = await scores(service)
                reason = worker.source.away
                await tarsy.come_back()
                await wait_until(lambda: all_are(service, "completed"), 60, "all scores are judged")

    states = {(status, waiting) for status, waiting, *_ in during.values()}
    assert states == {("completed", None), ("pending", None), ("pending", "source")}
    after = await scores(service)
    assert {burned for *_, burned in after.values()} == {0}
    assert sum(attempts for _, _, attempts, _ in after.values()) <= QUEUED + SLOTS
    assert is_away() == 0
    assert reason
    assert "TARSy's" in reason
    assert [line["event"] for line in lines if line["event"].startswith("source.")] == ["source.away", "source.answers"]


async def _refuse(_: web.Request) -> web.Response:
    return web.json_response({"message": "Internal Server Error"}, status=500)


async def test_a_session_that_the_source_cannot_read_fails_alone(service: Service, tarsy_database_url: str) -> None:
    """It burns its attempts while the other sessions are judged, and the source does not count as away."""
    await queue(service, tarsy_database_url, "bad", "good-1", "good-2")
    judge, metrics = HeldJudge(), Metrics()
    judge.may_answer.set()
    async with TarsyRest(tarsy_database_url) as tarsy:
        tarsy.instead["/sessions/bad/trace"] = _refuse
        source = TarsyApi(tarsy.url)
        async with working(service, source, judge, metrics):
            await wait_until(lambda: all_are(service, "completed", "failed"), 60, "all scores have ended")
        await source.close()

    after = await scores(service)
    assert after["bad"] == ("failed", None, 5, 5)
    assert [after[good][0] for good in ("good-1", "good-2")] == ["completed", "completed"]
    assert metrics.registry.get_sample_value("tarsy_scoring_source_away") == 0


async def test_a_session_that_is_too_large_fails_alone_at_once(service: Service, tarsy_database_url: str) -> None:
    """One attempt, while the score beside it stays in flight and the source does not count as away."""
    await queue(service, tarsy_database_url, "good")
    judge, metrics = HeldJudge(), Metrics()
    source = TarsyDatabase(tarsy_database_url, max_session_bytes=1_000_000)
    async with working(service, source, judge, metrics):
        await wait_until(lambda: len(judge.asked) == 1, 30, "its neighbour is judged")
        await queue(service, tarsy_database_url, "large", alert_data="x" * 1_000_000)

        async def has_failed() -> bool:
            return (await scores(service)).get("large") == ("failed", None, 1, 1)

        await wait_until(has_failed, 30, "it fails")
        during = (await scores(service))["good"]
        judge.may_answer.set()
        await wait_until(lambda: all_are(service, "completed", "failed"), 30, "all scores have ended")
    await source.close()

    assert during[0] == "in_progress"
    assert (await scores(service))["good"][0] == "completed"
    [failed] = await service.database.fetch("SELECT * FROM session_scores WHERE status = 'failed'")
    assert failed["error_kind"] == "session_too_large"
    assert "SCORING_MAX_SESSION_BYTES allows 1,000,000" in failed["error_message"]
    assert metrics.registry.get_sample_value("tarsy_scoring_source_away") == 0
