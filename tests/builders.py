"""Builders of records with sensible defaults; a test names only the fields that matter to it."""

import contextlib
import re
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import asyncpg

from tarsy_scoring.config.chains import ChainSettings, Config
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.events import SOURCE_COMPLETED, SOURCE_RESCORE
from tarsy_scoring.judge.verdict import Turn
from tarsy_scoring.outbox.outbox import IS_UNPUBLISHED, NewEvent
from tarsy_scoring.postgres.analytic_reads import AnalyticReads
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.queue.admission import Disposition, Policy, Priority, Request
from tarsy_scoring.queue.claims import ClaimedScore
from tarsy_scoring.queue.inbox import Inbox
from tarsy_scoring.queue.leases import Leases
from tarsy_scoring.queue.store import Ending, Step, Store, StoredTurn
from tarsy_scoring.scores.reader import Reader

DEFAULT_CRITERIA, OTHER_CRITERIA = "investigation", "cli-tool-use"
METHODOLOGY = "investigation-methodology"  # criteria with a breakdown
HASHES = {DEFAULT_CRITERIA: "hash-default", OTHER_CRITERIA: "hash-other", METHODOLOGY: "hash-methodology"}
LEASE_S = 600.0  # outlasts any test
UNPUBLISHED = f"SELECT count(*) FROM scoring_events e WHERE {IS_UNPUBLISHED}".format(schema="public")


def session_completed(session_id: str = "session-1", **changes: Any) -> Request:
    """The request of a `session-completed` event, with an event id of its own."""
    fields: dict[str, Any] = {"chain_id": "kubernetes", "session_status": "completed", "event_id": f"e-{uuid.uuid4()}"}
    return Request(uuid.uuid4(), session_id, SOURCE_COMPLETED, **fields | changes)


def rescore(session_id: str = "session-1", **changes: Any) -> Request:
    """The request of a `rescore-requested` event; forced, as such events are by default."""
    fields: dict[str, Any] = {"force": True, "requested_by": "alice", "priority": Priority.PEOPLE}
    return Request(uuid.uuid4(), session_id, SOURCE_RESCORE, **fields | changes)


def policy(
    defaults: Mapping[str, Any] | None = None,
    *,
    enabled: bool = True,
    hashes: Mapping[str, str] = HASHES,
    **chains: Mapping[str, Any],
) -> Policy:
    """A policy with these chain settings; a chain starts from the defaults, as in the YAML."""
    config = Config(
        defaults=ChainSettings(**(defaults or {})),
        chains={name: ChainSettings(**{**(defaults or {}), **chain}) for name, chain in chains.items()},
    )
    return Policy(Settings(enabled=enabled, config=config), hashes)


def turn(reply: str = "Well reasoned.\n\n67", **changes: Any) -> Turn:
    """A turn in which the judge answered the analysis."""
    answered = Turn(
        kind="analysis",
        reply=reply,
        provider="main",
        model_requested="judge-1",
        model_served="judge-1-2025",
        input_tokens=1000,
        cached_input_tokens=600,
        output_tokens=200,
        cost_usd=0.003,
        latency_ms=1200,
        finish_reason="stop",
    )
    return replace(answered, **changes)


def step(claimed: ClaimedScore, phase: str | None = None, ordinal: int | None = None, **changes: Any) -> Step:
    """A step of an attempt; with an `ordinal` it carries a turn."""
    asked = ("hash-default", "context-1", claimed.nonce)
    stored = () if ordinal is None else (StoredTurn(ordinal, *asked, f"asked-{ordinal}", turn(**changes)),)
    return Step(claimed, phase, stored)


def completion(claimed: ClaimedScore, *, missing_tools: Any = (), **columns: Any) -> Ending:
    """The end of a completed score."""
    columns = _end_columns("completed") | {"total_score": 67, "score_analysis": "Well reasoned."} | columns
    event = NewEvent(claimed.score_id, "scoring.completed", {"total_score": columns["total_score"]})
    return Ending(claimed, columns, event, missing_tools=missing_tools)


def failure(claimed: ClaimedScore, *, disposition: Disposition | None = None, **columns: Any) -> Ending:
    """The end of a score that failed and has no total."""
    error = {"error_kind": "refused", "error_message": "the judge refused to answer"}
    columns = _end_columns("failed") | error | columns
    event = NewEvent(claimed.score_id, "scoring.failed", {"status": columns["status"]} | error)
    return Ending(claimed, columns, event, disposition=disposition)


def _end_columns(status: str) -> dict[str, Any]:
    lists: dict[str, Any] = {name: [] for name in ("samples", "failure_tags", "flags", "diagnosis", "gates")}
    return {"status": status, "spent_s": 1.5, "attempts_burned": 0} | lists


@dataclass(frozen=True)
class Scoring:
    """Inbox, leases, store and reader on one database, with shortcuts for what tests do with them."""

    url: str
    database: Database
    inbox: Inbox
    leases: Leases
    store: Store
    reader: Reader
    analytics: Reader

    async def accept(self, *requests: Request) -> list[Disposition | None]:
        """Accept requests in one batch; gives the disposition of each, None for a repeat."""
        answers = await self.inbox.accept(requests)
        return [answers.get(r.request_id) for r in requests]

    async def claim(self, limit: int = 100, lease_s: float = LEASE_S) -> list[ClaimedScore]:
        return await self.leases.claim_due(uuid.uuid4(), limit, lease_s)

    async def claimed(self, session_id: str = "session-1", **changes: Any) -> ClaimedScore:
        """A score of this session on a known chain, accepted and claimed."""
        await self.accept(rescore(session_id, **({"chain_id": "kubernetes"} | changes)))
        [claimed] = await self.claim()
        return claimed

    async def lapse(self, *scores: ClaimedScore) -> None:
        """Make these leases expire now."""
        await self.rows(
            "UPDATE session_scores SET lease_expires_at = now() - interval '1 second' WHERE score_id = ANY($1)",
            [s.score_id for s in scores],
        )

    async def make_due(self) -> None:
        await self.rows("UPDATE session_scores SET next_attempt_at = now() WHERE status = 'pending'")

    async def take_back(self, max_attempts: int = 5, deadline_s: float = 3600) -> dict[str, str]:
        """Take back the scores whose lease has expired; gives the new status by session."""
        lost = await self.leases.take_back_expired(max_attempts, deadline_s)
        return {score["session_id"]: score["status"] for score in lost}

    async def rows(self, sql: str, *arguments: Any) -> list[dict[str, Any]]:
        return [dict(r) for r in await self.database.once(lambda c: c.fetch(sql, *arguments))]

    async def value(self, sql: str, *arguments: Any) -> Any:
        return await self.database.once(lambda c: c.fetchval(sql, *arguments))

    async def score(self, score_id: uuid.UUID) -> dict[str, Any]:
        """The row of a score."""
        [row] = await self.rows("SELECT * FROM session_scores WHERE score_id = $1", score_id)
        return row

    async def events(self, score_id: uuid.UUID | None = None) -> list[str]:
        """Emitted events in order: the phase of a progress event, else the type without `scoring.`."""
        rows = await self.rows(
            "SELECT type, payload->>'phase' AS phase FROM scoring_events "
            "WHERE score_id = $1 OR $1 IS NULL ORDER BY entry",
            score_id,
        )
        return [r["phase"] or r["type"].removeprefix("scoring.") for r in rows]

    async def dispositions(self) -> dict[uuid.UUID, str]:
        return {r["request_id"]: r["disposition"] for r in await self.rows("SELECT * FROM scoring_requests")}

    async def backends_waiting_for_a_lock(self) -> list[int]:
        """Backends of this database that wait for a lock another backend holds."""
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        return [r["pid"] for r in await self.rows(waiting)]

    async def everything(self) -> dict[str, list[dict[str, Any]]]:
        """All rows of the tables that an attempt writes, to show that nothing was written."""
        tables = ("session_scores", "judge_turns", "score_missing_tools", "scoring_events", "scoring_requests")
        return {table: await self.rows(f"SELECT * FROM {table} t ORDER BY t::text") for table in tables}


@contextlib.asynccontextmanager
async def open_scoring(
    url: str, of: Policy | None = None, *, pool_size: int = 10, read_s: float = 20
) -> AsyncIterator[Scoring]:
    """Open the parts that use PostgreSQL on a migrated database, in schema `public`."""
    database = Database(url, "public", pool_size=pool_size)
    many = AnalyticReads(url, "public", read_s=read_s)
    try:
        await database.open()
        await many.open()
        inbox = Inbox(database, of or policy())
        leases, store = Leases(database, inbox), Store(database, inbox)
        reader, analytics = (Reader(each, inbox.policy.current_hash) for each in (database, many))
        yield Scoring(url, database, inbox, leases, store, reader, analytics)
    finally:
        await many.close()
        await database.close()


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection of its own beside the pool, as another process would hold it."""
    connection = await asyncpg.connect(url, timeout=10)
    try:
        yield connection
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def role_on(url: str, *grants: str) -> AsyncIterator[tuple[str, str]]:
    """Name and URL of a new role with these grants, in which `{role}` is its name."""
    role = f"role_{uuid.uuid4().hex[:12]}"
    async with connected(url) as owner:
        await owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{role}'")
        try:
            for grant in grants:
                await owner.execute(grant.format(role=role))
            yield role, re.sub("//.*@", f"//{role}:{role}@", url)
        finally:
            await owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
