"""The HTTP application on a real database in this process, with a client that names users as a proxy does."""

import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx

from builders import Scoring, open_scoring, policy
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.queue.admission import Policy
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.timeline.model import FoundSession, TimelineSource
from tarsy_scoring.web.app import create_app
from tarsy_scoring.web.context import AppContext

# The client is a trusted proxy, other addresses of this machine are not, and no test reaches the rate limit.
SETTINGS = Settings(trusted_proxies="127.0.0.1", api_rate_per_minute=1_000_000)
AS_ALICE = {"X-Forwarded-User": "alice"}


@dataclass(frozen=True)
class Api:
    """HTTP client, with the application and the database behind it."""

    client: httpx.AsyncClient
    scoring: Scoring
    app: Any = None

    async def ask(
        self, session_id: str = "session-1", *, by: str = "alice", key: str | None = None, **body: Any
    ) -> Any:
        """Request a score of a session as this user."""
        headers = {"X-Forwarded-User": by} | ({"Idempotency-Key": key} if key else {})
        return await self.client.post(f"/api/v1/scoring/sessions/{session_id}/score", json=body, headers=headers)

    async def get(self, path: str, **parameters: Any) -> Any:
        return await self.client.get(f"/api/v1/scoring/{path}", params=parameters)

    async def score_of(self, session_id: str = "session-1") -> Any:
        return await self.get(f"sessions/{session_id}/score")

    async def cancel(self, score_id: uuid.UUID | str, by: str = "alice") -> Any:
        return await self.client.post(f"/api/v1/scoring/scores/{score_id}/cancel", headers={"X-Forwarded-User": by})


@contextlib.asynccontextmanager
async def open_api(
    url: str,
    source: TimelineSource | None = None,
    of: Policy | None = None,
    *,
    settings: Settings | None = None,
    pool_size: int = 10,
    read_s: float = 20,
) -> AsyncIterator[Api]:
    """The application on a migrated database. Without a source it knows only sessions of stored requests."""
    async with open_scoring(url, of or policy(), pool_size=pool_size, read_s=read_s) as scoring:
        parts = scoring.inbox, scoring.leases, scoring.reader, scoring.analytics
        site = AppContext(settings or SETTINGS, load_criteria(), *parts, Metrics(), source)
        app = create_app(site)
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=AS_ALICE) as client:
            yield Api(client, scoring, app)


class Sessions:
    """Timeline source that knows sessions but no timelines; an exception in place of a session is raised."""

    may_change = True

    def __init__(self, **sessions: FoundSession | Exception) -> None:
        self.sessions = sessions
        self.asked: list[str] = []

    async def find_session(self, session_id: str) -> FoundSession:
        self.asked.append(session_id)
        found = self.sessions[session_id.replace("-", "_")]
        if isinstance(found, Exception):
            raise found
        return found

    async def fetch_timeline(self, session_id: str) -> Any:
        raise AssertionError(f"the API must not read the timeline of {session_id}")

    def finished_sessions(self, since: Any) -> Any:
        raise AssertionError("the API must not list sessions")

    async def close(self) -> None:
        """Does nothing: the source holds no resource."""
