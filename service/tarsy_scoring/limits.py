"""
What the whole fleet may call: circuits, pauses, limits per minute and money, kept in PostgreSQL.

Laws. A call is admitted in one transaction: its probe, its place in the minute and its money are all
there or none is. The database's clock decides; between two looks its time is counted on here. Locks are
taken in one order: providers by name, days (all chains first), so nothing deadlocks. What was reserved
and never settled (a cancel, a crash) stays charged at its maximum. Where nothing is limited, paused or in
trouble, neither `admit` nor `settle` touches the database.
"""

import asyncio
import math
import random
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import asyncpg
import structlog

from tarsy_scoring.database import Batcher, Connection, Database
from tarsy_scoring.errors import (
    BudgetExhausted,
    CircuitOpen,
    ConfigurationError,
    KeyRejected,
    Paused,
    QuotaExhausted,
    RateLimited,
    ScoringError,
    WaitFor,
    WaitingFor,
)
from tarsy_scoring.settings import ChainSettings, ProviderSettings, Settings

log = structlog.get_logger()

Kind = Literal["circuit", "key", "quota"]

FAILURES_TO_OPEN = 5
COOL_DOWN_S, MOST_COOL_DOWN_S = 30.0, 300.0
PROBE_DUE_S = 30.0  # a probe may answer long before its time is up
WINDOW = timedelta(seconds=60)
# A large call that was refused for a whole window goes before all others; who does not come back for it
# within the grace has lost its place.
PATIENCE, GRACE = timedelta(seconds=60), timedelta(seconds=20)
LONGEST_BLOCK_S = 3600.0  # a header with nonsense in it must not stop a provider for ever
MOMENT_S = 1.0  # shorter waits keep nobody from claiming; also how often workers look
SHORTEST_DUE_S = 0.05
PAUSE_DUE_S = 5.0  # the claim passes paused scores over; this is how soon they go on afterwards
FREED_DUE_S = 30.0
MOST_FACTOR, FACTOR_STEPS = 4.0, 20  # steps of 0.05
SETTLED_WITHIN_S = 60.0  # beyond the deadline of a call; what is reserved for longer will hardly come free

# --- statements ----------------------------------------------------------------------------------------

# Lock providers in order of their names. RETURNING is evaluated when the lock is held, and so is its clock.
MEET_PROVIDERS = """
INSERT INTO {schema}.provider_states AS p (provider) SELECT x FROM unnest($1::text[]) x ORDER BY x
ON CONFLICT (provider) DO UPDATE SET reason = p.reason
RETURNING p.*, clock_timestamp() AS now
"""

SAVE_PROVIDERS = """
UPDATE {schema}.provider_states p SET
  failed_calls = v.failed_calls, kind = v.kind, open_until = v.open_until, cool_down_s = v.cool_down_s,
  reason = v.reason, probe_id = v.probe_id, probe_until = v.probe_until, blocked_until = v.blocked_until,
  first_in_line = v.first_in_line, in_line_since = v.in_line_since, in_line_until = v.in_line_until
FROM jsonb_populate_recordset(NULL::{schema}.provider_states, $1::jsonb) v WHERE p.provider = v.provider
"""

# What the window holds. Rows go long after they left it: who settles a call then must not meet who deletes it.
COUNT_WINDOW = """
WITH gone AS (
  DELETE FROM {schema}.provider_calls WHERE provider = $1 AND called_at <= $2::timestamptz - interval '60 s'
)
SELECT count(*) AS requests, coalesce(sum(tokens), 0)::bigint AS tokens
FROM {schema}.provider_calls WHERE provider = $1 AND called_at > $2
"""

READ_WINDOW = """
SELECT called_at, tokens FROM {schema}.provider_calls WHERE provider = $1 AND called_at > $2 ORDER BY called_at
"""

ADD_CALLS = """
INSERT INTO {schema}.provider_calls (call_id, provider, called_at, tokens)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::timestamptz[], $4::bigint[])
"""

# Written so that the age of a call can be no reason to look for it by another index than that of its id.
CORRECT_CALLS = """
UPDATE {schema}.provider_calls c SET tokens = t.tokens FROM unnest($1::uuid[], $2::bigint[]) AS t(call_id, tokens)
WHERE c.call_id = t.call_id AND now() - c.called_at < interval '60 s'
"""

# Lock the rows of this UTC day, the one of all chains first; the day is the one in which the transaction began.
MEET_DAYS = """
INSERT INTO {schema}.budget_days AS d (day, scope, chain_id)
SELECT (now() AT TIME ZONE 'UTC')::date, scope, chain_id FROM unnest($1::text[], $2::text[]) AS t(scope, chain_id)
ORDER BY scope, chain_id
ON CONFLICT (day, scope, chain_id) DO UPDATE SET charged_usd = d.charged_usd
RETURNING d.*, extract(epoch FROM clock_timestamp() - d.reserved_at)::float8 AS reserved_for_s,
          extract(epoch FROM (d.day + 1)::timestamp AT TIME ZONE 'UTC' - now())::float8 AS day_left_s
"""

LOCK_DAYS = """
SELECT FROM {schema}.budget_days d JOIN unnest($1::date[], $2::text[], $3::text[]) AS w(day, scope, chain_id)
  USING (day, scope, chain_id)
ORDER BY d.day, d.scope, d.chain_id FOR UPDATE OF d
"""

CHANGE_DAYS = """
UPDATE {schema}.budget_days d SET
  charged_usd = d.charged_usd + c.charged, reserved_usd = d.reserved_usd + c.reserved,
  reserved_at = CASE WHEN c.reserved > 0 THEN now() ELSE d.reserved_at END
FROM unnest($1::date[], $2::text[], $3::text[], $4::numeric[], $5::numeric[])
  AS c(day, scope, chain_id, charged, reserved)
WHERE d.day = c.day AND d.scope = c.scope AND d.chain_id = c.chain_id
"""

ADD_CHARGES = """
INSERT INTO {schema}.budget_charges (charge_id, day, chain_id, provider, score_id, reserved_usd)
SELECT * FROM unnest($1::uuid[], $2::date[], $3::text[], $4::text[], $5::uuid[], $6::numeric[])
"""

# Once: a charge that is settled already gives no row.
SETTLE_CHARGES = """
UPDATE {schema}.budget_charges c SET settled_usd = coalesce(s.usd, c.reserved_usd)
FROM unnest($1::uuid[], $2::numeric[]) AS s(charge_id, usd)
WHERE c.charge_id = s.charge_id AND c.settled_usd IS NULL
RETURNING c.day, c.chain_id, c.reserved_usd, c.settled_usd
"""

KNOWN_CALLS = """
SELECT call_id FROM {schema}.provider_calls WHERE call_id = ANY($1::uuid[])
UNION SELECT charge_id FROM {schema}.budget_charges WHERE charge_id = ANY($1::uuid[])
"""

PROVIDERS = "SELECT p.*, clock_timestamp() AS now FROM {schema}.provider_states p"

PAUSES = "SELECT chain_id, provider, since, paused_by, reason FROM {schema}.pauses ORDER BY since, chain_id, provider"

TODAY = """
SELECT scope, chain_id, charged_usd FROM {schema}.budget_days WHERE day = (now() AT TIME ZONE 'UTC')::date
"""

PAUSE = """
INSERT INTO {schema}.pauses (chain_id, provider, paused_by, reason) VALUES ($1, $2, $3, $4)
ON CONFLICT (chain_id, provider) DO NOTHING
"""

RESUME = """
DELETE FROM {schema}.pauses WHERE ($1::text IS NULL OR chain_id = $1) AND ($2::text IS NULL OR provider = $2)
RETURNING pause_id
"""

LEARN_FACTOR = """
INSERT INTO {schema}.provider_states AS p (provider, token_factor) VALUES ($1, $2)
ON CONFLICT (provider) DO UPDATE SET token_factor = greatest(p.token_factor, excluded.token_factor)
RETURNING p.*, clock_timestamp() AS now
"""


# --- records -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """
    One HTTP call about to be made.

    Args:
        tokens: Estimated input and reserved output.
        most_usd: What it costs at most; None where prices are unknown.
    """

    provider: str
    chain_id: str | None
    score_id: UUID
    tokens: int
    most_usd: float | None


@dataclass(frozen=True, slots=True)
class Permit:
    """Leave to make one call, and what is kept for it until it is settled."""

    permit_id: UUID
    call: Call
    is_probe: bool = False
    is_counted: bool = False
    is_charged: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """
    What became of a call.

    Args:
        failed: Counts for the circuit: 5xx, a timeout, unreachable; a 429 does not.
        opens: The key was rejected, or the quota is used up: the circuit opens at once.
        blocked_s: How long the provider asked for a pause.
        tokens: Really used; None: unknown, and the estimate stays.
        cost_usd: None: unknown, and the reservation stays charged at its maximum.
        reason: A few words for people; no text of the provider.
    """

    failed: bool = False
    opens: Literal["key", "quota"] | None = None
    blocked_s: float | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Pause:
    """Of a chain, of a provider, of a provider for one chain; of everything where both are None."""

    chain: str | None
    provider: str | None
    since: datetime
    by: str
    reason: str | None

    def covers(self, chain_id: str | None, provider: str | None) -> bool:
        """Whether it stops this provider for this chain; a `provider` of None asks for the chain as a whole."""
        return self.chain in (None, chain_id) and self.provider in (None, provider)

    def __str__(self) -> str:
        named = {"chain": self.chain, "provider": self.provider}
        what = ", ".join(f"{kind} {name!r}" for kind, name in named.items() if name is not None) or "everything"
        why = f" ({self.reason})" if self.reason else ""
        return f"{what}: paused since {self.since.astimezone(UTC):%Y-%m-%d %H:%M} UTC by {self.by}{why}"


@dataclass(frozen=True, slots=True)
class Claimable:
    """
    What the claim has to pass over.

    Args:
        configured: Chains with a standing of their own; '' stands for scores without a chain, where it is in it.
        blocked: Those of them none of whose scores may be claimed.
        probing: Those of them that wait for a probe: claim one at a time.
        others_blocked, others_probing: The same for every chain that is not in `configured`.
    """

    configured: list[str]
    blocked: list[str]
    probing: list[str]
    others_blocked: bool
    others_probing: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why chains cannot be judged right now."""

    by_chain: Mapping[str, WaitingFor | None]
    others: WaitingFor | None

    def reason(self, chain_id: str | None) -> WaitingFor | None:
        """What a pending score of this chain waits for; None where nothing holds the chain up."""
        return self.by_chain.get(chain_id or "", self.others)


@dataclass(frozen=True, slots=True)
class _Standing:
    reason: WaitingFor | None = None
    may_probe: bool = False

    @property
    def is_blocked(self) -> bool:
        return self.reason is not None and not self.may_probe


@dataclass(slots=True)
class _Asked:
    """A permit that somebody waits for; not `is_wanted` once that wait was cancelled."""

    permit: Permit
    is_wanted: bool = True


# --- the limits ----------------------------------------------------------------------------------------


class Limits:
    """
    Asked before every call of a judge, and told what became of it. One per process.

    Pauses, circuits and budgets are known from `refresh`, which a worker calls once a second; before the
    first one nothing is known to be in the way.

    Args:
        least_usd: What any call costs at least (its reserved reply), by provider: less than that left of a
            budget keeps scores from being claimed. Default: from the configured prices.
    """

    def __init__(self, database: Database, settings: Settings, *, least_usd: Mapping[str, float] | None = None) -> None:
        self._database = database
        self._settings = settings
        self._providers = settings.config.providers
        self._least_usd = {name: _least_usd(p) for name, p in self._providers.items()} | dict(least_usd or {})
        self._clock = (datetime.fromtimestamp(0, UTC), time.monotonic())
        self._states: dict[str, ProviderState] = {}
        self._learned_at: dict[str, float] = {}
        self._full_until: dict[str, float] = {}  # windows of ours, by the monotonic clock
        self._pauses: list[Pause] = []
        self._charged: dict[tuple[str, str], Decimal] = {}
        self._admissions = Batcher(self._admit_all)
        self._settlements = Batcher(self._settle_all)

    # --- what is known -----------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Look at pauses, circuits and budgets. Raises: DatabaseAway: What was known stays."""
        started = time.monotonic()
        config = self._settings.config
        has_budgets = any(self._has_budget(chain) for chain in (config.defaults, *config.chains.values()))

        async def look(connection: Connection) -> tuple[list[asyncpg.Record], ...]:
            states = await connection.fetch(self._database.sql(PROVIDERS))
            pauses = await connection.fetch(self._database.sql(PAUSES))
            return states, pauses, await connection.fetch(self._database.sql(TODAY)) if has_budgets else []

        states, pauses, days = await self._database.once(look)
        # What a transaction of ours has committed since may not be in it.
        self._learn([r for r in states if self._learned_at.get(r["provider"], -math.inf) <= started])
        self._pauses = [_pause_of(r) for r in pauses]
        self._charged = {(r["scope"], r["chain_id"]): r["charged_usd"] for r in days}

    def claimable(self) -> Claimable:
        """What the claim has to pass over, as far as known."""
        chains, others = self._standings()
        return Claimable(
            configured=list(chains),
            blocked=[c for c, standing in chains.items() if standing.is_blocked],
            probing=[c for c, standing in chains.items() if standing.may_probe],
            others_blocked=others.is_blocked,
            others_probing=others.may_probe,
        )

    async def waiting(self) -> Waiting:
        """What pending scores wait for, looked up now. Raises: DatabaseAway."""
        await self.refresh()
        chains, others = self._standings()
        return Waiting({c: standing.reason for c, standing in chains.items()}, others.reason)

    def token_factor(self, provider: str) -> float:
        """Real tokens per estimated one, as far as learned; in steps, so that contexts stay the same."""
        state = self._states.get(provider)
        return state.token_factor if state else 1.0

    async def learn_token_factor(self, provider: str, factor: float) -> None:
        """Remember it for the fleet, where it is the largest so far; at most 4. Waits for the database."""
        step = math.ceil(round(min(max(factor, 1.0), MOST_FACTOR) * FACTOR_STEPS, 6)) / FACTOR_STEPS
        if step > self.token_factor(provider):
            row = await self._database.persist(lambda c: c.fetchrow(self._database.sql(LEARN_FACTOR), provider, step))
            assert row is not None
            self._learn([row])

    # --- pauses ------------------------------------------------------------------------------------------

    async def pause(self, chain: str | None, provider: str | None, by: str, reason: str | None) -> None:
        """Pause it; what is paused stays as it is. Seen by workers at their next look. Raises: DatabaseAway."""
        await self._database.once(lambda c: c.execute(self._database.sql(PAUSE), chain, provider, by, reason))

    async def resume(self, chain: str | None, provider: str | None) -> int:
        """
        Lift every pause of this chain, of this provider, of both together; all of them where both are None.

        Returns:
            How many were lifted.

        Raises:
            DatabaseAway: It may have happened.
        """
        lifted = await self._database.once(lambda c: c.fetch(self._database.sql(RESUME), chain, provider))
        self._database.ring("scores")
        return len(lifted)

    async def pauses(self) -> list[Pause]:
        """All pauses, the oldest first. Raises: DatabaseAway."""
        return [_pause_of(r) for r in await self._database.once(lambda c: c.fetch(self._database.sql(PAUSES)))]

    # --- one call ----------------------------------------------------------------------------------------

    async def admit(self, call: Call) -> Permit:
        """
        Ask for leave to make one call now. Waits for the database, where it is needed at all.

        A cancel while the answer is being written leaves a call that was counted and charged at its maximum.

        Raises:
            Paused, CircuitOpen, KeyRejected, QuotaExhausted, RateLimited, BudgetExhausted: Not now.
            ConfigurationError: There is a budget and no price.
        """
        self._refuse_at_once(call)
        provider = self._providers[call.provider]
        state = self._states.get(call.provider)
        permit = Permit(
            uuid.uuid4(),
            call,
            is_probe=state is not None and state.kind is not None,
            is_counted=provider.requests_per_minute is not None or provider.tokens_per_minute is not None,
            is_charged=self._has_budget(self._settings.chain(call.chain_id)),
        )
        if permit.is_charged and call.most_usd is None:
            raise ConfigurationError(_NO_PRICE.format(call.provider))
        if not (permit.is_probe or permit.is_counted or permit.is_charged):
            return permit
        asked = _Asked(permit)
        try:
            answer = await self._admissions.submit(asked)
        except asyncio.CancelledError:
            asked.is_wanted = False
            raise
        if isinstance(answer, ScoringError):
            raise answer
        return answer

    async def settle(self, permit: Permit, result: Result) -> None:
        """
        Say what became of an admitted call. Waits for the database, where it is needed at all.

        Once told, telling it again changes nothing. A call that is never settled stays charged at its
        maximum, and a probe stands in the way of others until the deadline of its call.
        """
        if permit.is_charged or self._corrects_tokens(permit, result) or self._tells_of_provider(permit, result):
            await self._settlements.submit((permit, result))

    def _refuse_at_once(self, call: Call) -> None:
        """Raises: WaitFor: What is known already is in the way."""
        pause = next((p for p in self._pauses if p.covers(call.chain_id, call.provider)), None)
        if pause is not None:
            raise Paused(f"{pause}; `tarsy-scoring resume` lifts it", PAUSE_DUE_S)
        state = self._states.get(call.provider)
        refusal = refusal_of(state, self._now()) if state else None
        if refusal is not None:
            raise refusal

    def _tells_of_provider(self, permit: Permit, result: Result) -> bool:
        """Whether the fleet has to hear of this result."""
        state = self._states.get(permit.call.provider) or ProviderState(permit.call.provider)
        if permit.is_probe or result.failed or result.opens:
            return True
        if result.blocked_s is not None and state.blocked_for_s(self._now()) + MOMENT_S < result.blocked_s:
            return True
        return state.kind is None and bool(state.failed_calls)

    def _corrects_tokens(self, permit: Permit, result: Result) -> bool:
        has_limit = self._providers[permit.call.provider].tokens_per_minute is not None
        return has_limit and permit.is_counted and result.tokens not in (None, permit.call.tokens)

    # --- transactions ------------------------------------------------------------------------------------

    async def _admit_all(self, asked: Sequence[_Asked]) -> Sequence[Permit | WaitFor]:
        """Decide about many calls in one transaction, in the order in which they were asked for."""
        is_repeat = False

        async def work(connection: Connection) -> tuple[dict[UUID, Permit | WaitFor], _Books]:
            nonlocal is_repeat
            permits = [a.permit for a in asked if a.is_wanted]
            books = await self._open_books(connection, permits)
            known: set[UUID] = set()
            if is_repeat:  # the reply to the commit may have been lost
                rows = await connection.fetch(self._database.sql(KNOWN_CALLS), [p.permit_id for p in permits])
                known = {r["call_id"] for r in rows} | {s.probe_id for s in books.states.values() if s.probe_id}
            is_repeat = True
            answers = {p.permit_id: books.recall(p) if p.permit_id in known else books.decide(p) for p in permits}
            await self._close_books(connection, books)
            return answers, books

        answers, books = await self._database.persist(work)
        self._learn(books.rows, books.states)
        for provider, free_at in books.full_until.items():
            self._full_until[provider] = time.monotonic() + (free_at - self._now()).total_seconds()
        return [answers.get(a.permit.permit_id, a.permit) for a in asked]

    async def _open_books(self, connection: Connection, permits: Sequence[Permit]) -> "_Books":
        """Lock and read what these calls depend on."""
        books = _Books(self._settings)
        met = {p.call.provider for p in permits if p.is_counted or p.is_probe}
        if met:
            books.meet(await connection.fetch(self._database.sql(MEET_PROVIDERS), sorted(met)))
        for provider in sorted({p.call.provider for p in permits if p.is_counted}):
            since = books.now[provider] - WINDOW
            held = await connection.fetchrow(self._database.sql(COUNT_WINDOW), provider, since)
            assert held is not None
            window = _Window(self._providers[provider], held["requests"], held["tokens"])
            wanted = [p.call.tokens for p in permits if p.call.provider == provider]
            if not window.holds(window.requests + len(wanted), window.tokens + sum(wanted)):
                rows = await connection.fetch(self._database.sql(READ_WINDOW), provider, since)
                window.calls = [(r["called_at"], r["tokens"]) for r in rows]
            books.windows[provider] = window
        chains = sorted({p.call.chain_id or "" for p in permits if p.is_charged})
        if chains:
            scopes = ["all", *("chain" for _ in chains)]
            books.purses = {
                (r["scope"], r["chain_id"]): self._purse_of(r)
                for r in await connection.fetch(self._database.sql(MEET_DAYS), scopes, ["", *chains])
            }
        return books

    async def _close_books(self, connection: Connection, books: "_Books") -> None:
        """Write what was decided."""
        await self._save(connection, books.changed())
        if books.calls:
            await connection.execute(self._database.sql(ADD_CALLS), *_columns(books.calls))
        if books.charges:
            await connection.execute(self._database.sql(ADD_CHARGES), *_columns(books.charges))
            changes = {(p.day, *key): (p.added, p.added) for key, p in books.purses.items() if p.added}
            await self._change_days(connection, changes)

    async def _settle_all(self, settled: Sequence[tuple[Permit, Result]]) -> Sequence[None]:
        """Write down what became of many calls in one transaction."""
        told = [(p, r) for p, r in settled if self._tells_of_provider(p, r)]
        corrected = [(p.permit_id, r.tokens) for p, r in settled if self._corrects_tokens(p, r)]
        charged = {p.permit_id: r.cost_usd for p, r in settled if p.is_charged}

        async def work(connection: Connection) -> _Books:
            books = _Books(self._settings)
            if told:
                names = sorted({p.call.provider for p, _ in told})
                books.meet(await connection.fetch(self._database.sql(MEET_PROVIDERS), names))
                for permit, result in told:
                    name = permit.call.provider
                    books.states[name] = after(books.states[name], permit.permit_id, result, books.now[name])
                await self._save(connection, books.changed())
            if corrected:
                await connection.execute(self._database.sql(CORRECT_CALLS), *_columns(corrected))
            if charged:
                await self._settle_charges(connection, charged)
            return books

        books = await self._database.persist(work)
        for state in books.changed():
            _log_change(books.before(state.provider), state)
        self._learn(books.rows, books.states)
        for permit, result in settled:
            if (result.tokens or 0) < permit.call.tokens and self._corrects_tokens(permit, result):
                self._full_until.pop(permit.call.provider, None)  # there is more room than it seemed
        return [None for _ in settled]

    async def _settle_charges(self, connection: Connection, charged: Mapping[UUID, float | None]) -> None:
        usd = [None if cost is None else _usd(cost) for cost in charged.values()]
        rows = await connection.fetch(self._database.sql(SETTLE_CHARGES), list(charged), usd)
        changes: dict[tuple[Any, str, str], tuple[Decimal, Decimal]] = {}
        for r in rows:
            for key in ((r["day"], "all", ""), (r["day"], "chain", r["chain_id"])):
                more, freed = changes.get(key, (Decimal(), Decimal()))
                changes[key] = (more + r["settled_usd"] - r["reserved_usd"], freed - r["reserved_usd"])
        if changes:
            await connection.execute(self._database.sql(LOCK_DAYS), *_columns(changes))
            await self._change_days(connection, changes)

    async def _change_days(
        self, connection: Connection, changes: Mapping[tuple[Any, str, str], tuple[Decimal, Decimal]]
    ) -> None:
        rows = [(*key, *change) for key, change in changes.items()]
        await connection.execute(self._database.sql(CHANGE_DAYS), *_columns(rows))

    async def _save(self, connection: Connection, states: "Sequence[ProviderState]") -> None:
        if states:
            await connection.execute(self._database.sql(SAVE_PROVIDERS), [asdict(s) for s in states])

    # --- the snapshot ------------------------------------------------------------------------------------

    def _now(self) -> datetime:
        """The database's time, counted on since the last look."""
        then, at = self._clock
        return then + timedelta(seconds=time.monotonic() - at)

    def _learn(self, rows: Sequence[asyncpg.Record], states: "Mapping[str, ProviderState] | None" = None) -> None:
        for row in rows:
            name = row["provider"]
            self._states[name] = states[name] if states else ProviderState.of(row)
            self._learned_at[name] = time.monotonic()
            self._clock = (row["now"], time.monotonic())

    def _has_budget(self, chain: ChainSettings) -> bool:
        return self._settings.config.budget.daily_usd is not None or chain.daily_budget_usd is not None

    def _purse_of(self, row: asyncpg.Record) -> "_Purse":
        """A day's money; `is_moving` where calls may be under way that cost less than was reserved for them."""
        config, chain_id = self._settings.config, row["chain_id"]
        limit, whose = self._settings.chain(chain_id).daily_budget_usd, f"chain {chain_id!r}"
        if row["scope"] == "all":
            limit, whose = config.budget.daily_usd, "all chains"
        longest_s = max(p.timeout_s for p in config.providers.values()) + SETTLED_WITHIN_S
        return _Purse(
            day=row["day"],
            day_left_s=row["day_left_s"],
            limit=None if limit is None else _usd(limit),
            charged=row["charged_usd"],
            reserved=row["reserved_usd"],
            is_moving=row["reserved_for_s"] is not None and row["reserved_for_s"] < longest_s,
            whose=whose,
        )

    def _standings(self) -> tuple[dict[str, _Standing], _Standing]:
        """How every chain that differs from the others stands, and how the others do."""
        paused = (p.chain for p in self._pauses if p.chain is not None)
        charged = (chain for scope, chain in self._charged if scope == "chain")
        names = dict.fromkeys([*self._settings.config.chains, *paused, *charged])
        return {name: self._standing(name or None) for name in names}, self._standing(None, alone=False)

    def _standing(self, chain_id: str | None, *, alone: bool = True) -> _Standing:
        """How a chain stands; not `alone`: every chain that has spent nothing today."""
        chain = self._settings.chain(chain_id)
        if any(p.covers(chain_id, None) for p in self._pauses):
            return _Standing("pause")
        if not chain.judge.enabled or not chain.providers:
            return _Standing()
        if self._is_spent("all", "", self._settings.config.budget.daily_usd, chain) or (
            alone and self._is_spent("chain", chain_id or "", chain.daily_budget_usd, chain)
        ):
            return _Standing("budget")
        standings = [self._provider_standing(chain_id, provider) for provider in chain.providers]
        ready = next((s for s in standings if s.reason is None), None)
        return ready or next((s for s in standings if s.may_probe), standings[0])

    def _provider_standing(self, chain_id: str | None, provider: str) -> _Standing:
        if any(p.covers(chain_id, provider) for p in self._pauses):
            return _Standing("pause")
        now = self._now()
        state = self._states.get(provider)
        if state is not None and state.kind is not None and state.shut_for_s(now) > 0:
            return _Standing(state.kind)
        blocked_s = state.blocked_for_s(now) if state else 0.0
        if max(blocked_s, self._full_until.get(provider, 0.0) - time.monotonic()) > MOMENT_S:
            return _Standing("rate_limit")
        return _Standing(state.kind, may_probe=True) if state and state.kind is not None else _Standing()

    def _is_spent(self, scope: str, chain_id: str, limit: float | None, chain: ChainSettings) -> bool:
        """Whether what is left is less than any call of the chain costs."""
        least = min(self._least_usd.get(p, 0.0) for p in chain.providers)
        return limit is not None and _usd(limit) - self._charged.get((scope, chain_id), Decimal()) < _usd(least)


# --- decisions -----------------------------------------------------------------------------------------

_REFUSALS: dict[Kind, type[CircuitOpen | KeyRejected | QuotaExhausted]] = {
    "circuit": CircuitOpen,
    "key": KeyRejected,
    "quota": QuotaExhausted,
}
_ADVICE: dict[Kind, str] = {
    "circuit": "it failed too often in a row",
    "key": "its key is rejected, check the key of the provider",
    "quota": "its quota is used up, pay or raise it at the provider",
}
_NO_PRICE = (
    "a daily budget needs to know what calls cost, and no prices are known for the provider {!r}: "
    "set its prices_usd_per_million_tokens"
)


@dataclass(frozen=True, slots=True)
class ProviderState:
    """What the fleet knows of a provider. Its circuit is closed where `kind` is None."""

    provider: str
    token_factor: float = 1.0
    failed_calls: tuple[UUID, ...] = ()
    kind: Kind | None = None
    open_until: datetime | None = None
    cool_down_s: float = 0.0
    reason: str = ""
    probe_id: UUID | None = None
    probe_until: datetime | None = None
    blocked_until: datetime | None = None
    first_in_line: UUID | None = None
    in_line_since: datetime | None = None
    in_line_until: datetime | None = None

    @classmethod
    def of(cls, row: asyncpg.Record) -> "ProviderState":
        """From its row."""
        columns = {name: row[name] for name in cls.__dataclass_fields__}
        return cls(**columns | {"failed_calls": tuple(columns["failed_calls"])})

    def shut_for_s(self, now: datetime) -> float:
        """Seconds in which its circuit lets nobody try; 0 where it is closed, or half open."""
        return max(_seconds(self.open_until, now), _seconds(self.probe_until, now))

    def blocked_for_s(self, now: datetime) -> float:
        """Seconds left of the pause that it asked for."""
        return _seconds(self.blocked_until, now)


def refusal_of(state: ProviderState, now: datetime) -> WaitFor | None:
    """Why the provider must not be called now; None where it may, be it as a probe."""
    if state.kind is not None and (shut_s := state.shut_for_s(now)) > 0:
        due_s = shut_s if _seconds(state.open_until, now) > 0 else min(shut_s, PROBE_DUE_S)
        told = f" (last: {state.reason})" if state.reason else ""
        return _REFUSALS[state.kind](
            f"the provider {state.provider!r} is not called: {_ADVICE[state.kind]}{told}; "
            "one call after the other tries whether it is well again",
            max(due_s, SHORTEST_DUE_S),
        )
    if (blocked_s := state.blocked_for_s(now)) > 0:
        return RateLimited(f"the provider {state.provider!r} asked for a pause", max(blocked_s, SHORTEST_DUE_S))
    return None


def after(state: ProviderState, call_id: UUID, result: Result, now: datetime) -> ProviderState:
    """
    The state after a call; the same again after the same call.

    While the circuit is open only its probe counts: other calls began before it opened.
    """
    if result.blocked_s is not None and result.blocked_s > 0:
        until = now + timedelta(seconds=min(result.blocked_s, LONGEST_BLOCK_S))
        state = replace(state, blocked_until=max(state.blocked_until or until, until))
    is_probe = state.probe_id == call_id
    if state.kind is not None and not is_probe:
        return state
    closed = replace(
        state, failed_calls=(), kind=None, open_until=None, cool_down_s=0.0, reason="", probe_id=None, probe_until=None
    )
    if not (result.failed or result.opens):
        return closed
    failed = state.failed_calls if call_id in state.failed_calls else (*state.failed_calls, call_id)
    told = replace(closed, failed_calls=failed[-FAILURES_TO_OPEN:], reason=result.reason)
    if not (is_probe or result.opens or len(failed) >= FAILURES_TO_OPEN):
        return told
    cool_down_s = min(2 * state.cool_down_s, MOST_COOL_DOWN_S) if is_probe else COOL_DOWN_S
    open_until = now + timedelta(seconds=cool_down_s)
    return replace(told, kind=result.opens or "circuit", open_until=open_until, cool_down_s=cool_down_s)


@dataclass(slots=True)
class _Window:
    """The calls of the last minute at a provider; `calls` one by one, oldest first, where they may be too many."""

    limits: ProviderSettings
    requests: int
    tokens: int
    calls: list[tuple[datetime, int]] = field(default_factory=list)

    def has_room(self, tokens: int) -> bool:
        # A call that is larger than the limit by itself has to wait for an empty window, and not for ever.
        most = self.limits.tokens_per_minute
        return self.holds(self.requests + 1, self.tokens + (tokens if most is None else min(tokens, most)))

    def holds(self, requests: int, tokens: int) -> bool:
        """Whether that many are within the limits."""
        most_requests, most_tokens = self.limits.requests_per_minute, self.limits.tokens_per_minute
        return requests <= (most_requests or requests) and tokens <= (most_tokens or tokens)

    def free_at(self, tokens: int) -> datetime:
        """When enough calls have left for one of this size; only where there is no room for it now."""
        left = replace(self, calls=[])
        last = max(called_at for called_at, _ in self.calls)
        for called_at, gone in self.calls:
            left.requests, left.tokens = left.requests - 1, left.tokens - gone
            if left.has_room(tokens):
                last = called_at
                break
        return last + WINDOW

    def add(self, tokens: int, at: datetime) -> None:
        self.requests, self.tokens = self.requests + 1, self.tokens + tokens
        self.calls.append((at, tokens))


@dataclass(slots=True)
class _Purse:
    """The money of a day; `added` is what is being reserved now."""

    day: Any
    day_left_s: float
    limit: Decimal | None
    charged: Decimal
    reserved: Decimal
    is_moving: bool
    whose: str
    added: Decimal = Decimal()

    @property
    def left(self) -> Decimal:
        return Decimal("Infinity") if self.limit is None else self.limit - self.charged - self.added

    def may_have_later(self, usd: Decimal) -> bool:
        """Whether there would be enough today if calls under way cost nothing."""
        settled = self.charged - self.reserved if self.is_moving or self.added else self.charged
        return self.limit is None or settled + usd <= self.limit


@dataclass(slots=True)
class _Books:
    """What a transaction has locked, and what it is going to write: calls are decided here one by one."""

    settings: Settings
    rows: list[asyncpg.Record] = field(default_factory=list)
    states: dict[str, ProviderState] = field(default_factory=dict)
    now: dict[str, datetime] = field(default_factory=dict)
    windows: dict[str, _Window] = field(default_factory=dict)
    purses: dict[tuple[str, str], _Purse] = field(default_factory=dict)
    full_until: dict[str, datetime] = field(default_factory=dict)
    calls: list[tuple[UUID, str, datetime, int]] = field(default_factory=list)
    charges: list[tuple[UUID, Any, str, str, UUID, Decimal]] = field(default_factory=list)

    def meet(self, rows: list[asyncpg.Record]) -> None:
        self.rows = rows
        self.states = {r["provider"]: ProviderState.of(r) for r in rows}
        self.now = {r["provider"]: r["now"] for r in rows}

    def before(self, provider: str) -> ProviderState:
        return next(ProviderState.of(r) for r in self.rows if r["provider"] == provider)

    def changed(self) -> list[ProviderState]:
        return [s for s in self.states.values() if s != self.before(s.provider)]

    def recall(self, permit: Permit) -> Permit:
        """The permit that a transaction gave whose reply was lost."""
        state = self.states.get(permit.call.provider)
        return replace(permit, is_probe=state is not None and state.probe_id == permit.permit_id)

    def decide(self, permit: Permit) -> Permit | WaitFor:
        """Admit the call, with all that is kept for it, or say why not."""
        state = self.states.get(permit.call.provider)
        if state is not None and (refusal := refusal_of(state, self.now[state.provider])):
            return refusal
        refusal = self._over_rate(permit.call) if permit.is_counted else None
        refusal = refusal or (self._over_budget(permit.call) if permit.is_charged else None)
        return refusal or self._admit(permit)

    def _over_rate(self, call: Call) -> RateLimited | None:
        state, window, now = self.states[call.provider], self.windows[call.provider], self.now[call.provider]
        is_others = state.first_in_line is not None and state.first_in_line != call.score_id
        is_held = is_others and _seconds(state.in_line_until, now) > 0
        if window.has_room(call.tokens):
            if not (is_held and state.in_line_since is not None and now - state.in_line_since >= PATIENCE):
                return None
            return _too_fast(call.provider, _seconds(state.in_line_until, now))
        free_at = window.free_at(call.tokens)
        if not is_held and window.has_room(0):  # it is its size that keeps it
            since = now if is_others or _seconds(state.in_line_until, now) == 0 else state.in_line_since
            place = {"first_in_line": call.score_id, "in_line_since": since, "in_line_until": free_at + GRACE}
            self.states[call.provider] = replace(state, **place)  # type: ignore[arg-type]  # of three columns
        # Less room than any call needs: nobody has to come for it.
        least = window.limits.max_reply_tokens
        if not window.has_room(least):
            self.full_until[call.provider] = window.free_at(least)
        return _too_fast(call.provider, _seconds(free_at, now))

    def _over_budget(self, call: Call) -> BudgetExhausted | None:
        usd = _usd(call.most_usd or 0.0)
        purses = self._purses(call)
        lacking = next((p for p in purses if p.left < usd), None)
        if lacking is None:
            return None
        if all(p.may_have_later(usd) for p in purses):
            due_s, hope = FREED_DUE_S * random.uniform(0.8, 1.2), "calls under way may cost less"  # noqa: S311 - jitter
        else:
            due_s, hope = lacking.day_left_s + random.uniform(1, 60), "the next UTC day brings more"  # noqa: S311
        return BudgetExhausted(
            f"the daily budget of {lacking.limit} USD of {lacking.whose} has {lacking.left:.4f} USD left "
            f"for a call of up to {usd:.4f} USD: {hope}",
            due_s,
        )

    def _admit(self, permit: Permit) -> Permit:
        call, state = permit.call, self.states.get(permit.call.provider)
        is_probe = state is not None and state.kind is not None
        if state is not None:
            now = self.now[call.provider]
            if is_probe:
                until = now + timedelta(seconds=self.settings.config.providers[call.provider].timeout_s)
                state = replace(state, probe_id=permit.permit_id, probe_until=until)
            if state.first_in_line == call.score_id:
                state = replace(state, first_in_line=None, in_line_since=None, in_line_until=None)
            self.states[call.provider] = state
            if permit.is_counted:
                self.windows[call.provider].add(call.tokens, now)
                self.calls.append((permit.permit_id, call.provider, now, call.tokens))
        if permit.is_charged:
            usd = _usd(call.most_usd or 0.0)
            purses = self._purses(call)
            for purse in purses:
                purse.added += usd
            self.charges.append(
                (permit.permit_id, purses[0].day, call.chain_id or "", call.provider, call.score_id, usd)
            )
        return replace(permit, is_probe=is_probe)

    def _purses(self, call: Call) -> tuple[_Purse, _Purse]:
        return self.purses["all", ""], self.purses["chain", call.chain_id or ""]


def require_affordable(settings: Settings, most_usd: Mapping[str, float | None]) -> None:
    """
    Refuse budgets that nobody can keep: without prices, or too small for a single call.

    Args:
        most_usd: What a call that fills the whole window costs at most, by provider; None: no prices are known.

    Raises:
        ConfigurationError: Naming the budget and the provider.
    """
    config = settings.config
    chains = {"defaults": config.defaults} | {f"chains.{name}": chain for name, chain in config.chains.items()}
    for where, chain in chains.items():
        budgets = {"budget.daily_usd": config.budget.daily_usd, f"{where}.daily_budget_usd": chain.daily_budget_usd}
        for name, budget in budgets.items():
            for provider in chain.providers if chain.judge.enabled and budget is not None else ():
                most = most_usd[provider]
                if most is None:
                    raise ConfigurationError(f"{name}: {_NO_PRICE.format(provider)}")
                if budget is not None and budget < most:
                    raise ConfigurationError(
                        f"{name}: {budget:g} USD is less than one call that fills the window of {provider!r} may cost "
                        f"({most:.4f} USD); raise it, or lower context_window_tokens or max_reply_tokens"
                    )


def _too_fast(provider: str, due_s: float) -> RateLimited:
    return RateLimited(
        f"the provider {provider!r} has had as many calls or tokens in this minute as its requests_per_minute and "
        "tokens_per_minute allow",
        max(due_s, SHORTEST_DUE_S),
    )


def _least_usd(provider: ProviderSettings) -> float:
    prices = provider.prices_usd_per_million_tokens
    return prices.output * provider.max_reply_tokens / 1e6 if prices else 0.0


def _pause_of(row: asyncpg.Record) -> Pause:
    return Pause(row["chain_id"], row["provider"], row["since"], row["paused_by"], row["reason"])


def _columns(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """Rows as the arrays that `unnest` takes."""
    return [list(column) for column in zip(*rows, strict=True)]


def _usd(amount: float) -> Decimal:
    """Exact, as people wrote it: sums of many calls must not drift."""
    return Decimal(repr(amount))


def _seconds(until: datetime | None, now: datetime) -> float:
    """Seconds left; 0 where it is over, or never was."""
    return max(0.0, (until - now).total_seconds()) if until is not None else 0.0


def _log_change(before: ProviderState, state: ProviderState) -> None:
    if state.kind is None and before.kind is not None:
        log.info("circuit.closed", provider=state.provider, was=before.kind)
    elif state.kind is not None and state.open_until != before.open_until:
        log.warning(
            "circuit.opened",
            provider=state.provider,
            kind=state.kind,
            cool_down_s=state.cool_down_s,
            reason=state.reason,
        )
