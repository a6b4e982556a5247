"""Runs one attempt on a real database, with sessions in memory and a judge that gives scripted answers."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from fakes import FakeJudge, FakeSessions
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.events import SOURCE_COMPLETED
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.queue.admission import Policy, Request
from tarsy_scoring.queue.claims import ClaimedScore
from tarsy_scoring.queue.inbox import Inbox
from tarsy_scoring.queue.leases import Leases
from tarsy_scoring.queue.store import Store
from tarsy_scoring.scores.reader import Reader
from tarsy_scoring.scoring.attempt import Finished, Scorer
from tarsy_scoring.scoring.watched_source import WatchedSource
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.timeline.model import Event, Execution, Stage, Timeline, TimelineSource

REGISTRY = load_criteria()
HASHES = {c.name: c.criteria_hash for c in REGISTRY}


def a_timeline(**changes: Any) -> Timeline:
    """A small finished session with one thought and one answer."""
    events = (
        Event("e1", 1, "llm_thinking", "completed", "The pod restarts; I look at its logs."),
        Event("e2", 2, "llm_response", "completed", "It runs out of memory."),
    )
    execution = Execution("x1", "agent", 1, "completed", events, model_names=("agent-model",))
    stage = Stage("s1", "diagnosis", 1, "investigation", "completed", (execution,), expected_agent_count=1)
    whole = Timeline("one", "completed", "k", "Restarts", "a pod restarts", "out of memory", None, (stage,))
    return replace(whole, **changes)


def watched(source: TimelineSource, metrics: Metrics | None = None) -> WatchedSource:
    """The source as attempts and a worker use it."""
    return WatchedSource(source, metrics or Metrics())


@dataclass
class Service:
    """The parts of a worker that take part in an attempt."""

    settings: Settings
    database: Database
    inbox: Inbox
    leases: Leases
    store: Store
    reader: Reader

    async def request(self, session_id: str = "one", **fields: Any) -> None:
        fields = {"source": SOURCE_COMPLETED, "session_status": "completed", "chain_id": "k"} | fields
        await self.inbox.accept([Request(request_id=uuid.uuid4(), session_id=session_id, **fields)])

    async def claim(self) -> ClaimedScore:
        (claimed,) = await self.leases.claim_due(uuid.uuid4(), 1, 60)
        return claimed

    async def claim_now(self) -> ClaimedScore:
        """Make every waiting score due now and claim one."""
        await self.database.once(lambda c: c.execute("UPDATE session_scores SET next_attempt_at = now()"))
        return await self.claim()

    async def attempt(
        self, claimed: ClaimedScore, judge: FakeJudge, timeline: Timeline | Exception | None = None, **settings: Any
    ) -> Finished:
        changed = self.settings.model_copy(update=settings)
        return await self.scorer({"default": judge}, timeline, settings=changed).attempt(claimed)

    def scorer(self, clients: Any, timeline: Timeline | Exception | None = None, **parts: Any) -> Scorer:
        """A scorer whose source holds the session `one`, by default a small finished one."""
        own = {
            "settings": self.settings,
            "leases": self.leases,
            "store": self.store,
            "source": watched(FakeSessions(one=a_timeline() if timeline is None else timeline)),
            "registry": REGISTRY,
            "metrics": Metrics(),
            "limits": Limits(self.database, self.settings),
        }
        return Scorer(clients=clients, **own | parts)

    async def score(self, score_id: uuid.UUID) -> dict[str, Any]:
        document = await self.reader.score(score_id)
        assert document is not None
        return document

    async def events(self, score_id: uuid.UUID) -> list[dict[str, Any]]:
        query = "SELECT payload FROM scoring_events WHERE score_id = $1 ORDER BY sequence"
        return [r["payload"] for r in await self.database.once(lambda c: c.fetch(query, score_id))]


@asynccontextmanager
async def open_service(database_url: str, **environ: str) -> AsyncIterator[Service]:
    """Open the parts of a worker on this database, with settings from these variables."""
    settings = load_settings({"SCORING_DATABASE_URL": database_url} | environ)
    database = Database(database_url, "public", pool_size=5)
    await database.open()
    try:
        inbox = Inbox(database, Policy(settings, HASHES))
        leases, store = Leases(database, inbox), Store(database, inbox)
        yield Service(settings, database, inbox, leases, store, Reader(database, inbox.policy.current_hash))
    finally:
        await database.close()
