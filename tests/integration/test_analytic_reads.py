"""Reads over many scores: whatever they cost, they take nothing from requests about one score."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from api_site import Api, open_api
from builders import connected
from infrastructure import wait_until
from stored import store_score
from tarsy_scoring.postgres.analytic_reads import CONNECTIONS
from tarsy_scoring.web.edge.semaphore import BoundedSemaphore

AS_BROWSER = {"Accept": "text/html,*/*;q=0.8", "X-Forwarded-User": "alice"}
JSON = "/api/v1/scoring"
POOL = 2
ANALYTIC = [
    *("/week", "/", "/trends", "/distribution", "/failure-tags", "/missing-tools", "/approaches", "/drift", "/review"),
    *(f"{JSON}/{path}" for path in ("sessions", "export", "trust")),
    *(f"{JSON}/analytics/{path}" for path in ("trends", "distribution", "missing-tools", "failure-tags", "drift")),
]


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    """An API whose pool for everything else is smaller than the number of blocked reads."""
    async with open_api(database_url, pool_size=POOL) as opened:
        yield opened


@contextlib.asynccontextmanager
async def without_free_connection(api: Api) -> AsyncIterator[None]:
    """Every connection for reads over many scores is in use."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(CONNECTIONS):
            await stack.enter_async_context(api.scoring.analytics.database.transaction())
        yield


async def require_service(api: Api) -> None:
    """Require that a score is requested and read, and that the process is ready."""
    asked = await api.ask("session-2", force_rescore=True)
    assert asked.status_code == 202, asked.text
    for path in ("/readyz", f"{JSON}/sessions/session-1/score", f"{JSON}/sessions/session-1/scores"):
        assert (await api.client.get(path)).status_code == 200, path


async def test_without_a_free_connection_analytic_reads_are_refused(database_url: str) -> None:
    """The answer names what to narrow, as a page and as JSON."""
    async with open_api(database_url, pool_size=POOL, read_s=0.3) as api, without_free_connection(api):
        for path in ANALYTIC:
            refused = await api.client.get(path, headers={} if path.startswith(JSON) else AS_BROWSER)

            assert refused.status_code == 503, path
            assert int(refused.headers["retry-after"]) > 0
            assert "choose a shorter period, one chain or criteria" in refused.text


async def test_blocked_analytic_reads_delay_no_request_about_one_score(database_url: str) -> None:
    async with open_api(database_url, pool_size=POOL, read_s=15) as api, connected(database_url) as other:
        await store_score(api.scoring, "session-1", 40)
        await store_score(api.scoring, "session-2", 40)
        async with other.transaction():
            await other.execute("LOCK TABLE score_labels IN ACCESS EXCLUSIVE MODE")
            reads = [asyncio.create_task(api.get("trust")) for _ in range(2 * CONNECTIONS)]
            waiting = "SELECT count(*) >= $1 FROM pg_locks WHERE NOT granted AND relation = 'score_labels'::regclass"
            await wait_until(lambda: other.fetchval(waiting, POOL), 10, "the reads are blocked")

            await require_service(api)
            answers = await asyncio.gather(*reads)

    assert [answer.status_code for answer in answers] == [503] * len(reads)
    assert {answer.json()["title"] for answer in answers} == {"Too much to read"}


async def test_requests_beyond_the_places_for_analytic_reads_are_refused_at_once(api: Api) -> None:
    """Otherwise they would wait, and use up the places of all requests."""
    await store_score(api.scoring, "session-1", 40)
    await store_score(api.scoring, "session-2", 40)
    api.app.state.context.analytic_requests = BoundedSemaphore(0)

    for path in ANALYTIC:
        refused = await api.client.get(path)
        assert (refused.status_code, refused.json()["title"]) == (503, "Too busy"), path
        assert int(refused.headers["retry-after"]) > 0
    await require_service(api)
    api.app.state.context.analytic_requests = BoundedSemaphore(1)
    assert [(await api.client.get(path)).status_code for path in ANALYTIC] == [200] * len(ANALYTIC)
