"""Commits that wait for a synchronous standby, on a server of the tests' own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from attempting import a_timeline, open_service, watched
from builders import connected
from fakes import ANALYSIS, MISSING_TOOLS, FakeJudge, FakeSessions
from infrastructure import Postgres, wait_until
from tarsy_scoring.judge.verdict import Question, Turn
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.postgres import transactions
from tarsy_scoring.scoring.worker import Worker
from tarsy_scoring.telemetry.metrics import Metrics

pytestmark = pytest.mark.usefixtures("own_postgres")

Wait = Callable[[str], Awaitable[None]]


@pytest.fixture
async def wait_for_standbys(own_postgres: Postgres, database_url: str) -> AsyncIterator[Wait]:
    """Gives a function that lets commits wait for these standbys, which are away."""

    async def configure(names: str) -> None:
        async with connected(own_postgres.url) as server:
            await server.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
            await server.execute("SELECT pg_reload_conf()")

        async def holds() -> bool:
            async with connected(own_postgres.url) as server:
                return bool(await server.fetchval("SHOW synchronous_standby_names") == names)

        await wait_until(holds, 30, "the server has read its new configuration")

    yield configure
    await configure("")


class ReadyJudge(FakeJudge):
    """Answers every question at once."""

    async def ask(self, question: Question, **_: Any) -> Turn:
        self._answers = [ANALYSIS if question.kind == "analysis" else MISSING_TOOLS]
        return await super().ask(question)


async def test_scores_wait_for_commits_that_wait_for_a_standby(
    database_url: str, wait_for_standbys: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a commit is broken off by its client and kept by the server. No claim of that kind burns an attempt."""
    monkeypatch.setattr(transactions, "COMMAND_TIMEOUT_S", 0.5)
    ids, judge = [f"session-{n}" for n in range(6)], ReadyJudge()
    async with open_service(database_url) as service:
        for session_id in ids:
            await service.request(session_id)
        source = watched(FakeSessions(**{session_id: a_timeline() for session_id in ids}))
        worker = Worker(
            settings=service.settings,
            leases=service.leases,
            scorer=service.scorer({"default": judge}, source=source),
            source=source,
            metrics=Metrics(),
            limits=Limits(service.database, service.settings),
        )
        stopping = asyncio.Event()

        async def all_are(condition: str) -> bool:
            async with connected(database_url) as other:
                return bool(await other.fetchval(f"SELECT count(*) = 6 FROM session_scores WHERE {condition}"))

        await wait_for_standbys("FIRST 1 (standby_1)")
        running = asyncio.create_task(worker.run(stopping))
        try:
            await wait_until(lambda: all_are("attempt >= 3"), 60, "all scores were claimed again and again")
            await wait_for_standbys("")
            await wait_until(lambda: all_are("status = 'completed'"), 60, "all scores are judged")
        finally:
            stopping.set()
            await running
        assert await all_are("attempts_burned = 0 AND losses = 0")
    assert len(judge.asked) == 2 * len(ids)
