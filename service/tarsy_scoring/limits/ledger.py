"""
The limits' SQL: locks, reads and writes their tables within a transaction opened by `Limits`.

Locks are taken in one order, providers by name and then days with all chains first, so transactions cannot
deadlock. A reservation is charged at the maximum until it is settled, and is settled once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.limits.budgets import DayBudget, exact_usd
from tarsy_scoring.limits.rules import WINDOW, LockedState, Permit, ProviderState, Window
from tarsy_scoring.postgres.database import Connection, Database

# Locks providers by name. RETURNING is evaluated with the lock held, and so is the clock.
LOCK_PROVIDERS = """
INSERT INTO {schema}.provider_states AS p (provider) SELECT x FROM unnest($1::text[]) x ORDER BY x
ON CONFLICT (provider) DO UPDATE SET reason = p.reason
RETURNING p.*, clock_timestamp() AS read_at
"""

SAVE_PROVIDERS = """
UPDATE {schema}.provider_states p SET
  failed_calls = v.failed_calls, rejected_scores = v.rejected_scores, kind = v.kind,
  open_until = v.open_until, cool_down_s = v.cool_down_s,
  reason = v.reason, probe_id = v.probe_id, probe_until = v.probe_until, blocked_until = v.blocked_until
FROM jsonb_populate_recordset(NULL::{schema}.provider_states, $1::jsonb) v WHERE p.provider = v.provider
"""

# Counts the calls in the window. Rows are deleted long after they left it, so that a deletion and a late
# settlement do not lock each other.
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

# The age condition is written so that the planner cannot use the index on `called_at`; the lookup is by id.
CORRECT_CALLS = """
UPDATE {schema}.provider_calls c SET tokens = t.tokens FROM unnest($1::uuid[], $2::bigint[]) AS t(call_id, tokens)
WHERE c.call_id = t.call_id AND now() - c.called_at < interval '60 s'
"""

# Locks the rows for the UTC day in which the transaction began, the row for all chains first.
LOCK_TODAY = """
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

# Settles once: a settled charge returns no row.
SETTLE_CHARGES = """
UPDATE {schema}.budget_charges c SET settled_usd = coalesce(s.usd, c.reserved_usd)
FROM unnest($1::uuid[], $2::numeric[]) AS s(charge_id, usd)
WHERE c.charge_id = s.charge_id AND c.settled_usd IS NULL
RETURNING c.day, c.chain_id, c.reserved_usd, c.settled_usd
"""


class LimitTables:
    """Runs inside transactions that `Limits` opens, and keeps no state."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    async def open(self, connection: Connection, permits: Sequence[Permit]) -> LockedState:
        """Lock and read every row that decides about these calls."""
        locked = LockedState(self._settings)
        as_locked = set(_providers(p for p in permits if p.is_counted or p.is_probe))
        if as_locked:
            await self.lock_providers(connection, locked, as_locked)
        for provider in _providers(p for p in permits if p.is_counted):
            wanted = [p.call.tokens for p in permits if p.call.provider == provider]
            locked.windows[provider] = await self._window(
                connection, provider, locked.states[provider].read_at - WINDOW, wanted
            )
        charged = [p for p in permits if p.is_charged]
        if charged:
            chains = sorted({p.call.chain_id or "" for p in charged})
            scopes = ["all", *("chain" for _ in chains)]
            rows = await connection.fetch(self._database.sql(LOCK_TODAY), scopes, ["", *chains])
            locked.budgets = {
                (r["scope"], r["chain_id"]): DayBudget.of(dict(r), self._settings) for r in rows
            }
        return locked

    async def lock_providers(
        self, connection: Connection, locked: LockedState, providers: Iterable[str]
    ) -> None:
        """Lock providers and read their states into `locked`."""
        rows = await connection.fetch(self._database.sql(LOCK_PROVIDERS), sorted(providers))
        locked.as_locked = {r["provider"]: ProviderState.of(r) for r in rows}
        locked.states = dict(locked.as_locked)

    async def _window(
        self, connection: Connection, provider: str, since: datetime, wanted: Sequence[int]
    ) -> Window:
        """Read the last minute's calls; list them one by one only if the wanted calls may not fit."""
        held = await connection.fetchrow(self._database.sql(COUNT_WINDOW), provider, since)
        assert held is not None
        window = Window(self._settings.config.providers[provider], held["requests"], held["tokens"])
        if not window.holds(window.requests + len(wanted), window.tokens + sum(wanted)):
            rows = await connection.fetch(self._database.sql(READ_WINDOW), provider, since)
            window.calls = [(r["called_at"], r["tokens"]) for r in rows]
        return window

    async def close(self, connection: Connection, locked: LockedState) -> None:
        """Write the decisions."""
        await self.save(connection, locked)
        if locked.calls:
            await connection.execute(self._database.sql(ADD_CALLS), *_columns(locked.calls))
        if locked.charges:
            await connection.execute(self._database.sql(ADD_CHARGES), *_columns(locked.charges))
            changes = {(p.day, *key): (p.added, p.added) for key, p in locked.budgets.items() if p.added}
            await self._change_days(connection, changes)

    async def save(self, connection: Connection, locked: LockedState) -> None:
        """Write changed provider states."""
        if states := locked.changed():
            await connection.execute(self._database.sql(SAVE_PROVIDERS), [asdict(s) for s in states])

    async def correct(self, connection: Connection, tokens: Sequence[tuple[UUID, int | None]]) -> None:
        """Write the tokens that calls used, by permit."""
        if tokens:
            await connection.execute(self._database.sql(CORRECT_CALLS), *_columns(tokens))

    async def settle(self, connection: Connection, charged: Mapping[UUID, float | None]) -> None:
        """Write what calls cost in USD, by permit; None keeps the reserved maximum."""
        if not charged:
            return
        usd = [None if cost is None else exact_usd(cost) for cost in charged.values()]
        rows = await connection.fetch(self._database.sql(SETTLE_CHARGES), list(charged), usd)
        changes: dict[tuple[date, str, str], tuple[Decimal, Decimal]] = {}
        for r in rows:
            for key in ((r["day"], "all", ""), (r["day"], "chain", r["chain_id"])):
                more, freed = changes.get(key, (Decimal(), Decimal()))
                changes[key] = (more + r["settled_usd"] - r["reserved_usd"], freed - r["reserved_usd"])
        if changes:
            await connection.execute(self._database.sql(LOCK_DAYS), *_columns(changes))
            await self._change_days(connection, changes)

    async def _change_days(
        self, connection: Connection, changes: Mapping[tuple[date, str, str], tuple[Decimal, Decimal]]
    ) -> None:
        if rows := [(*key, *change) for key, change in changes.items()]:  # none for calls that cost nothing
            await connection.execute(self._database.sql(CHANGE_DAYS), *_columns(rows))


def _providers(permits: Iterable[Permit]) -> list[str]:
    return sorted({p.call.provider for p in permits})


def _columns(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """Transpose rows into the arrays that `unnest` takes."""
    return [list(column) for column in zip(*rows, strict=True)]
