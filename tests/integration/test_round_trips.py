"""
A request for a score costs a known number of round trips to PostgreSQL.

Each round trip waits for the event loop and for PostgreSQL, so on a busy machine their number decides how long a
caller waits.
"""

import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import httpx
import pytest

from api_site import AS_ALICE, Sessions
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.postgres.transactions import prepare_session
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.timeline.model import FoundSession
from tarsy_scoring.web.app import create_app
from tarsy_scoring.web.context import AppContext
from tarsy_scoring.wiring import Parts, open_parts

NAMES = ("warm", "one", "two", "open", "done")

# A connection asks once for each type that the driver does not know.
OF_DRIVER = re.compile(r"typeinfo_tree|'jit'")

Count = Callable[..., Any]


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that the service's connections execute; each of them is a round trip."""
    executed: list[str] = []

    async def prepare_counted(connection: asyncpg.Connection) -> None:
        await prepare_session(connection)
        connection.add_query_logger(
            lambda query: None if OF_DRIVER.search(query.query) else executed.append(query.query)
        )

    monkeypatch.setattr("tarsy_scoring.postgres.database.prepare_session", prepare_counted)
    monkeypatch.setattr("tarsy_scoring.scores.reader.WAITING_S", 3600)
    return executed


@pytest.fixture
async def parts(database_url: str, statements: list[str]) -> AsyncIterator[Parts]:
    environment = {"SCORING_DATABASE_URL": database_url, "SCORING_TRUSTED_PROXIES": "127.0.0.1"}
    async with open_parts(load_settings(environment)) as opened:
        yield opened


@pytest.fixture
async def count(parts: Parts, statements: list[str]) -> AsyncIterator[Count]:
    """Asks the API, and counts round trips and transactions: those of one statement, and those with BEGIN."""
    source = Sessions(**{name: FoundSession(name, "k", "completed", None) for name in NAMES})
    stored = parts.inbox, parts.leases, parts.reader, parts.analytics
    app = create_app(AppContext(parts.settings, parts.registry, *stored, Metrics(), source))
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=AS_ALICE) as client:

        async def ask(path: str, key: str | None = None, **body: Any) -> tuple[int, int, int, int]:
            statements.clear()
            headers = {"Idempotency-Key": key} if key else {}
            answer = await client.post(f"/api/v1/scoring/{path}", json=body, headers=headers)
            within = sum(statement.startswith("BEGIN") for statement in statements)
            alone, is_inside = 0, False
            for statement in statements:
                is_inside = statement.startswith("BEGIN") or (is_inside and not statement.startswith("COMMIT"))
                alone += not is_inside and not statement.startswith("COMMIT")
            return answer.status_code, len(statements), alone, within

        await ask("sessions/warm/score")
        yield ask


async def test_a_new_score_costs_eight(count: Count) -> None:
    """One transaction finds out that the session must be verified, and one stores everything."""
    assert await count("sessions/one/score") == (202, 8, 0, 2)
    assert await count("sessions/two/score", force_rescore=True, reason="why") == (202, 8, 0, 2)


async def test_a_key_costs_six_more(count: Count) -> None:
    """Its lock and the look for its answer, twice, and the answer, which is kept and then completed."""
    assert await count("sessions/one/score", key="a-key") == (202, 14, 1, 2)
    assert await count("sessions/one/score", key="a-key") == (202, 5, 0, 1)


async def test_a_score_that_exists_costs_six(count: Count, parts: Parts) -> None:
    """Its document is read after the request was stored."""
    await count("sessions/open/score")
    assert await count("sessions/open/score") == (202, 6, 1, 1)

    await count("sessions/done/score")
    ended = "UPDATE session_scores SET status = 'completed', completed_at = now(), total_score = 67"
    await parts.database.once(lambda c: c.execute(f"{ended} WHERE session_id = 'done'"))
    assert await count("sessions/done/score") == (200, 6, 1, 1)
    assert await count("sessions/done/score", force_rescore=True) == (202, 9, 0, 2)


async def test_a_refusal_costs_two(count: Count) -> None:
    assert await count("sessions/one/score", criteria="none-such") == (422, 2, 0, 1)
