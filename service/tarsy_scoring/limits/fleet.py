"""
Limits that hold over the whole fleet: circuits, pauses, rates per minute and budgets, kept in PostgreSQL.

One transaction admits a call: probe, place in the minute and money are reserved together or not
at all. The database's clock decides; between refreshes the time is extrapolated with the monotonic clock. A
reservation that is never settled (cancel, crash) stays charged at the maximum. Without limits, pauses or
failures, neither `admit` nor `settle` touches the database.
"""

import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

import asyncpg
import structlog

from tarsy_scoring.config.chains import ChainSettings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError, ScoringError, WaitFor
from tarsy_scoring.limits.budgets import NO_PRICE, exact_usd, state_of_budget
from tarsy_scoring.limits.ledger import LimitTables
from tarsy_scoring.limits.rules import (
    NEVER,
    NEW_BUDGET,
    Call,
    Kind,
    LockedState,
    Pause,
    Permit,
    ProviderState,
    Result,
    Standing,
    Standings,
    refusal_of,
    state_after,
)
from tarsy_scoring.limits.token_calibration import FactorReports
from tarsy_scoring.postgres.batching import Batcher
from tarsy_scoring.postgres.database import Connection, Database

log = structlog.get_logger()

MOMENT_S = 1.0  # waits shorter than this do not block the claim; equals the workers' refresh interval
PAUSE_DUE_S = 5.0  # the claim skips paused scores; after a resume they are due within this time

# --- statements ----------------------------------------------------------------------------------------

PROVIDERS = "SELECT p.*, clock_timestamp() AS read_at FROM {schema}.provider_states p"

PAUSES = """
SELECT chain_id AS chain, provider, since, paused_by AS by, reason FROM {schema}.pauses
ORDER BY since, chain_id, provider
"""

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

# Lowers the factor only from the value it was compared with, because another process may have raised it
# since. A different model starts over.
LEARN_FACTOR = """
INSERT INTO {schema}.provider_states AS p (provider, token_model, token_factor) VALUES ($1, $2, $3)
ON CONFLICT (provider) DO UPDATE SET token_model = excluded.token_model, token_factor = CASE
  WHEN p.token_model IS DISTINCT FROM excluded.token_model OR p.token_factor = $4 THEN excluded.token_factor
  ELSE greatest(p.token_factor, excluded.token_factor)
END
RETURNING p.*, clock_timestamp() AS read_at
"""


# --- the limits ----------------------------------------------------------------------------------------


class Limits:
    """
    Admits judge calls and records their results. One instance per process.

    `refresh` reads pauses, circuits and budgets; a worker calls it once a second. Before the first refresh
    nothing blocks.

    Args:
        least_usd: The least that a first call reserves (what a full reply costs), by provider. Scores in a
            chain whose budget has less than this left are not claimed. Default: 0, which claims until nothing
            is left.
    """

    def __init__(
        self, database: Database, settings: Settings, *, least_usd: Mapping[str, float] | None = None
    ) -> None:
        self._database = database
        self._tables = LimitTables(database, settings)
        self._settings = settings
        self._providers = settings.config.providers
        self._least_usd = least_usd or {}
        self._clock = (NEVER, time.monotonic())
        self._states: dict[str, ProviderState] = {}
        self._full_until: dict[str, float] = {}  # our rate windows, by the monotonic clock
        self._pauses: list[Pause] = []
        self._charged: dict[tuple[str, str], Decimal] = {}
        self._reports: defaultdict[str, FactorReports] = defaultdict(FactorReports)
        self._admissions = Batcher(self._admit_all)
        self._settlements = Batcher(self._settle_all)

    # --- state read from the database ---------------------------------------------------------------------

    async def refresh(self) -> None:
        """Read pauses, circuits and budgets. Raises: DatabaseAway: the previous state stays in force."""

        async def look(connection: Connection) -> list[list[asyncpg.Record]]:
            return [await connection.fetch(self._database.sql(sql)) for sql in (PROVIDERS, PAUSES, TODAY)]

        states, pauses, days = await self._database.once(look)
        self._learn(ProviderState.of(r) for r in states)
        self._pauses = [Pause(**r) for r in pauses]
        self._charged = {(r["scope"], r["chain_id"]): r["charged_usd"] for r in days}

    async def refreshed_standings(self) -> Standings:
        """Refresh, then return every chain's standing. Raises: DatabaseAway."""
        await self.refresh()
        return self.standings()

    def token_factor(self, provider: str) -> float:
        """The model's tokens per estimated token. It moves in steps, so that contexts stay reproducible."""
        state = self._states.get(provider)
        return state.token_factor if state and state.token_model == self._providers[provider].model else 1.0

    def open_circuits(self) -> dict[str, Kind | None]:
        """Why each provider's circuit is open or half open at the last refresh; None if it is closed."""
        states = {name: self._states.get(name) for name in self._providers}
        return {name: state.kind if state is not None else None for name, state in states.items()}

    def budget_shares(self) -> dict[tuple[str, str], float]:
        """
        Share spent or reserved today per budget, at the last refresh. It may exceed 1.

        Returns:
            Shares by scope and chain: `("all", "")` for all chains together; chain '' for scores without a
                chain. A zero budget counts as spent.
        """
        config = self._settings.config
        charged = {chain for scope, chain in self._charged if scope == "chain"}
        limits = {("all", ""): config.budget.daily_usd}
        for chain in {"", *config.chains, *charged}:
            limits["chain", chain] = self._settings.chain(chain).daily_budget_usd
        return {
            key: float(self._charged.get(key, Decimal()) / exact_usd(limit)) if limit else 1.0
            for key, limit in limits.items()
            if limit is not None
        }

    # --- pauses ------------------------------------------------------------------------------------------

    async def pause(self, chain: str | None, provider: str | None, by: str, reason: str | None) -> None:
        """
        Add a pause; an existing one stays unchanged. Workers see it at their next refresh.

        Raises:
            DatabaseAway: The pause may or may not have been added.
        """
        await self._database.once(lambda c: c.execute(self._database.sql(PAUSE), chain, provider, by, reason))

    async def resume(self, chain: str | None, provider: str | None) -> int:
        """
        Lift the pauses for this chain, this provider, or the pair; all pauses if both are None.

        Returns:
            How many pauses were lifted.

        Raises:
            DatabaseAway: The pauses may or may not have been lifted.
        """
        lifted = await self._database.rows(RESUME, chain, provider)
        self._database.notify("scores")
        return len(lifted)

    # --- one call ----------------------------------------------------------------------------------------

    async def admit(self, call: Call) -> Permit:
        """
        Reserve permission for one call. Waits for the database where one is needed.

        After a cancel, and after a commit whose reply was lost, a call that is not made may stay counted and
        charged at the maximum.

        Raises:
            WaitFor:
                The call must wait.
            ConfigurationError: A budget is set and the provider has no price.
        """
        if pause := self._pause_of(call.chain_id, call.provider):
            raise WaitFor(f"{pause}; `tarsy-scoring resume` lifts it", PAUSE_DUE_S, "pause")
        state = self._states.get(call.provider) or ProviderState(call.provider)
        if refusal := refusal_of(state, self._now()):
            raise refusal
        provider = self._providers[call.provider]
        permit = Permit(
            uuid.uuid4(),
            call,
            is_probe=state.kind is not None,
            is_counted=provider.requests_per_minute is not None or provider.tokens_per_minute is not None,
            is_charged=self._has_budget(self._settings.chain(call.chain_id)),
        )
        if permit.is_charged and call.most_usd is None:
            raise ConfigurationError(NO_PRICE.format(call.provider))
        if not (permit.is_probe or permit.is_counted or permit.is_charged):
            return permit
        answer = await self._admissions.submit(permit)
        if isinstance(answer, ScoringError):
            raise answer
        return answer

    async def settle(self, permit: Permit, result: Result) -> None:
        """
        Record an admitted call's result. Waits for the database where one is needed.

        Settling is idempotent. A call that is never settled stays charged at the maximum, and an unsettled
        probe blocks other probes until the call's deadline.
        """
        if (
            permit.is_charged
            or self._corrects_token_count(permit, result)
            or self._changes_provider_state(permit, result)
        ):
            await self._settlements.submit((permit, result))
        if result.estimated_tokens is not None and result.read_tokens is not None:
            await self._learn_factor(permit.call.provider, result.estimated_tokens, result.read_tokens)

    def _changes_provider_state(self, permit: Permit, result: Result) -> bool:
        """Whether the result changes shared provider state and must be written."""
        state = self._states.get(permit.call.provider) or ProviderState(permit.call.provider)
        if permit.is_probe or result.failed or result.opens or result.is_rejected:
            return True
        if result.blocked_s is not None and state.blocked_for_s(self._now()) + MOMENT_S < result.blocked_s:
            return True
        return (
            result.answers_score and state.kind is None and bool(state.failed_calls + state.rejected_scores)
        )

    def _corrects_token_count(self, permit: Permit, result: Result) -> bool:
        has_limit = self._providers[permit.call.provider].tokens_per_minute is not None
        return has_limit and permit.is_counted and result.tokens not in (None, permit.call.tokens)

    async def _learn_factor(self, provider: str, estimated_tokens: int, read_tokens: int) -> None:
        """Update the token factor; write it to the database if it moves."""
        known = self.token_factor(provider)
        factor = self._reports[provider].factor_after(known, estimated_tokens, read_tokens)
        if factor != known:
            model = self._providers[provider].model
            row = await self._database.persist(
                lambda c: c.fetchrow(self._database.sql(LEARN_FACTOR), provider, model, factor, known)
            )
            assert row is not None
            self._learn([ProviderState.of(row)])

    # --- transactions ------------------------------------------------------------------------------------

    async def _admit_all(self, asked: Sequence[Permit]) -> Sequence[Permit | WaitFor]:
        """Decide many calls in one transaction, in the order requested."""

        async def work(connection: Connection) -> tuple[list[Permit | WaitFor], LockedState]:
            # Under new ids: an earlier try may have been committed although the reply was lost.
            permits = [replace(permit, permit_id=uuid.uuid4()) for permit in asked]
            locked = await self._tables.open(connection, permits)
            answers = [locked.decide(permit) for permit in permits]
            await self._tables.close(connection, locked)
            return answers, locked

        answers, locked = await self._database.persist(work)
        self._learn(locked.states.values())
        for provider, free_at in locked.full_until.items():
            self._full_until[provider] = time.monotonic() + (free_at - self._now()).total_seconds()
        return answers

    async def _settle_all(self, settled: Sequence[tuple[Permit, Result]]) -> Sequence[None]:
        """Write many calls' results in one transaction."""
        changing = [(p, r) for p, r in settled if self._changes_provider_state(p, r)]
        corrected = [(p.permit_id, r.tokens) for p, r in settled if self._corrects_token_count(p, r)]
        charged = {p.permit_id: r.cost_usd for p, r in settled if p.is_charged}

        async def work(connection: Connection) -> LockedState:
            locked = LockedState(self._settings)
            if changing:
                await self._tables.lock_providers(connection, locked, {p.call.provider for p, _ in changing})
                for permit, result in changing:
                    state = locked.states[permit.call.provider]
                    locked.states[state.provider] = state_after(
                        state, permit.permit_id, result, state.read_at, permit.call.score_id
                    )
                await self._tables.save(connection, locked)
            await self._tables.correct(connection, corrected)
            await self._tables.settle(connection, charged)
            return locked

        locked = await self._database.persist(work)
        for state in locked.changed():
            _log_change(locked.as_locked[state.provider], state)
        self._learn(locked.states.values())
        for permit, result in settled:  # providers whose calls used less than they reserved are asked again
            if (result.tokens or 0) < permit.call.tokens and self._corrects_token_count(permit, result):
                self._full_until.pop(permit.call.provider, None)
        return [None for _ in settled]

    # --- the last refresh --------------------------------------------------------------------------------

    def _now(self) -> datetime:
        """The database's time, extrapolated since the last read."""
        then, at = self._clock
        return then + timedelta(seconds=time.monotonic() - at)

    def _learn(self, states: Iterable[ProviderState]) -> None:
        for state in states:
            self._states[state.provider] = state
            self._clock = (state.read_at, time.monotonic())

    def _pause_of(self, chain_id: str | None, provider: str | None) -> Pause | None:
        return next((p for p in self._pauses if p.covers(chain_id, provider)), None)

    def _has_budget(self, chain: ChainSettings) -> bool:
        return self._settings.config.budget.daily_usd is not None or chain.daily_budget_usd is not None

    def standings(self) -> Standings:
        """Every chain's standing, according to the last refresh."""
        paused = (p.chain for p in self._pauses if p.chain is not None)
        charged = (chain for scope, chain in self._charged if scope == "chain")
        names = dict.fromkeys([*self._settings.config.chains, *paused, *charged])
        by_chain = {name: self._standing(name or None) for name in names}
        return Standings(by_chain, self._standing(None, alone=False))

    def _standing(self, chain_id: str | None, *, alone: bool = True) -> Standing:
        """A chain's standing. `alone` False: for any chain that has spent nothing today."""
        chain = self._settings.chain(chain_id)
        if pause := self._pause_of(chain_id, None):
            return Standing("pause", text=str(pause))
        if not chain.judge or not chain.providers:
            return Standing()
        spent = self._spent("all", "", self._settings.config.budget.daily_usd, chain)
        if spent is None and alone:
            spent = self._spent("chain", chain_id or "", chain.daily_budget_usd, chain)
        if spent is not None:
            return Standing("budget", text=f"{spent}: {NEW_BUDGET}")
        standings = [self._provider_standing(chain_id, provider) for provider in chain.providers]
        # A provider that is ready decides, else one that may be probed, else the first.
        return max(standings, key=lambda s: (s.reason is None, s.may_probe))

    def _provider_standing(self, chain_id: str | None, provider: str) -> Standing:
        if pause := self._pause_of(chain_id, provider):
            return Standing("pause", text=str(pause))
        now = self._now()
        state = self._states.get(provider)
        if state is not None and state.kind is not None and state.shut_for_s(now) > 0:
            return Standing(state.kind, text=str(refusal_of(state, now)))
        blocked_s = state.blocked_for_s(now) if state else 0.0
        if (wait_s := max(blocked_s, self._full_until.get(provider, 0.0) - time.monotonic())) > MOMENT_S:
            return Standing(
                "rate_limit", text=f"the rate limit of the provider {provider!r} lasts {wait_s:.0f} s"
            )
        return Standing(state.kind, may_probe=True) if state and state.kind is not None else Standing()

    def _spent(self, scope: str, chain_id: str, limit: float | None, chain: ChainSettings) -> str | None:
        """A budget's state in words, if less is left than the chain's cheapest call reserves."""
        if limit is None:
            return None
        least = min(self._least_usd.get(p, 0.0) for p in chain.providers)
        left = exact_usd(limit) - self._charged.get((scope, chain_id), Decimal())
        whose = "all chains" if scope == "all" else f"chain {chain_id!r}"
        return state_of_budget(whose, left, exact_usd(limit)) if left < exact_usd(least) else None


async def read_pauses(database: Database) -> list[Pause]:
    """All pauses, oldest first. Raises: DatabaseAway."""
    return [Pause(**r) for r in await database.rows(PAUSES)]


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
