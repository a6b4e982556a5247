"""The limits of a fleet: processes share budgets, rates, circuits and pauses through PostgreSQL."""

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from structlog.testing import capture_logs

from builders import connected
from charges import MOST_CHARGED, note_every_charge
from infrastructure import Postgres, fresh_database
from proxy import DatabaseProxy
from tarsy_scoring.config.chains import BudgetSettings, ChainSettings, Config, ProviderSettings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import WaitFor
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.limits.rules import Call, Permit, Result, Standing, Standings
from tarsy_scoring.postgres.database import Database

FAILED = Result(failed=True, reason="HTTP 503")
MINUTE_S = 60.0


def settings_of(
    providers: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    daily_usd: float | None = None,
    defaults: Mapping[str, Any] | None = None,
    **chains: Mapping[str, Any],
) -> Settings:
    """Settings with these providers (default: only `main`), which every chain may use, as from YAML."""
    named = {name: ProviderSettings(**p) for name, p in (providers or {"main": {}}).items()}
    every: dict[str, Any] = {"providers": tuple(named), **(defaults or {})}
    return Settings(
        config=Config(
            providers=named,
            defaults=ChainSettings(**every),
            chains={name: ChainSettings(**{**every, **chain}) for name, chain in chains.items()},
            budget=BudgetSettings(daily_usd=daily_usd),
        )
    )


def call_of(
    chain_id: str | None = "kubernetes",
    *,
    provider: str = "main",
    tokens: int = 1_000,
    usd: float | None = 0.01,
    score_id: uuid.UUID | None = None,
) -> Call:
    return Call(provider, chain_id, score_id or uuid.uuid4(), tokens, usd)


@dataclass(frozen=True)
class Fleet:
    """Several processes that share only the database, and direct access to that database."""

    members: Sequence[Limits]
    seen: Database

    @property
    def one(self) -> Limits:
        return self.members[0]

    def member(self, n: int) -> Limits:
        return self.members[n % len(self.members)]

    async def refresh(self) -> None:
        for member in self.members:
            await member.refresh()

    async def rows(self, sql: str, *arguments: Any) -> list[dict[str, Any]]:
        return [dict(r) for r in await self.seen.once(lambda c: c.fetch(sql, *arguments))]

    async def value(self, sql: str, *arguments: Any) -> Any:
        return await self.seen.once(lambda c: c.fetchval(sql, *arguments))

    async def pass_time(self, seconds: float) -> None:
        """Age the stored states of providers and calls by so many seconds; then every process refreshes."""
        times = ("open_until", "probe_until", "blocked_until")
        moved = ", ".join(f"{t} = {t} - make_interval(secs => $1)" for t in times)
        await self.rows(f"UPDATE provider_states SET {moved}", seconds)
        await self.rows("UPDATE provider_calls SET called_at = called_at - make_interval(secs => $1)", seconds)
        await self.refresh()

    async def day(self, scope: str = "all", chain_id: str = "") -> tuple[Decimal, Decimal]:
        """Today's charge, and the share of it that is reserved."""
        [row] = await self.rows(
            "SELECT charged_usd, reserved_usd FROM budget_days "
            "WHERE day = (now() AT TIME ZONE 'UTC')::date AND scope = $1 AND chain_id = $2",
            *(scope, chain_id),
        )
        return row["charged_usd"], row["reserved_usd"]

    async def fail(self, times: int = 5, provider: str = "main", result: Result = FAILED) -> None:
        """Let `times` calls in a row end like this, in turn at each process; then every process refreshes."""
        permits = [await self.member(n).admit(call_of(provider=provider)) for n in range(times)]
        for n, permit in enumerate(permits):
            await self.member(n).settle(permit, result)
        await self.refresh()


@contextlib.asynccontextmanager
async def open_fleet(url: str, settings: Settings, *, size: int = 3) -> AsyncIterator[Fleet]:
    databases = [Database(url, "public", pool_size=4) for _ in range(size)]
    seen = Database(url, "public", pool_size=3)
    for database in (*databases, seen):
        await database.open()
    try:
        yield Fleet([Limits(database, settings, least_usd={"main": 0.1}) for database in databases], seen)
    finally:
        for database in (*databases, seen):
            await database.close()


def waited_for(refusal: WaitFor | None) -> str | None:
    return refusal and refusal.waiting_for


async def refusal(limits_of_one: Limits, call: Call) -> WaitFor | None:
    """The reason why this call is not admitted now; None if it is."""
    try:
        await limits_of_one.admit(call)
    except WaitFor as error:
        return error
    return None


async def tried(calls: Mapping[Limits, Sequence[Call]]) -> tuple[list[Permit], list[WaitFor]]:
    """Request all calls concurrently; returns permits and refusals."""

    async def ask(member: Limits, call: Call) -> Permit | WaitFor:
        try:
            return await member.admit(call)
        except WaitFor as error:
            return error

    answers = await asyncio.gather(*(ask(m, c) for m, listed in calls.items() for c in listed))
    return [a for a in answers if isinstance(a, Permit)], [a for a in answers if isinstance(a, WaitFor)]


@pytest.fixture(scope="module")
def _shared_url(postgres: Postgres, _migrated_template: str) -> Iterator[str]:
    with fresh_database(postgres, _migrated_template) as url:
        yield url


@pytest.fixture
async def url(_shared_url: str) -> str:
    """A migrated database without any state of a provider, shared by the tests here."""
    async with connected(_shared_url) as connection:
        await connection.execute("TRUNCATE provider_states, provider_calls, pauses, budget_days, budget_charges")
    return _shared_url


# --- budgets -------------------------------------------------------------------------------------------


async def test_a_budget_is_never_exceeded_and_every_affordable_call_is_made(database_url: str) -> None:
    """
    1,000 concurrent calls of four processes on five chains reserve five times the budget and cost half of it.
    The charged sum never exceeds the budget, not for an instant, and in the end every call is made.
    """
    budget, most = Decimal("2"), Decimal("0.01")
    settings = settings_of(daily_usd=float(budget), full={"daily_budget_usd": 0.5}, wide={"daily_budget_usd": 1.9})
    chance = random.Random(7)
    calls = [call_of(f"{chance.choice(['full', 'wide', 'a', 'b', ''])}" or None) for _ in range(1_000)]
    costs = {c.score_id: round(chance.uniform(0, 0.002), 6) for c in calls}
    refusals: list[WaitFor] = []
    settled, settlements = asyncio.Condition(), 0

    async def make(member: Limits, call: Call) -> None:
        nonlocal settlements
        while True:
            before = settlements
            try:
                permit = await member.admit(call)
                break
            except WaitFor as error:
                refusals.append(error)
                async with settled:
                    await settled.wait_for(lambda before=before: settlements > before)
        await asyncio.sleep(0)
        await member.settle(permit, Result(cost_usd=costs[call.score_id]))
        settlements += 1
        async with settled:
            settled.notify_all()

    async with open_fleet(database_url, settings, size=4) as fleet:
        await note_every_charge(database_url)
        with capture_logs() as logs:
            await asyncio.wait_for(asyncio.gather(*(make(fleet.member(n), c) for n, c in enumerate(calls))), 120)

        most_charged = {r["chain_id"] or r["scope"]: r["usd"] for r in await fleet.rows(MOST_CHARGED)}
        assert most_charged["all"] <= budget
        assert most_charged["full"] <= Decimal("0.5")
        assert most_charged["wide"] <= Decimal("1.9")
        spent = sum(Decimal(repr(cost)) for cost in costs.values())
        assert await fleet.day() == (spent, 0)
        assert await fleet.value("SELECT sum(charged_usd) FROM budget_days WHERE scope = 'chain'") == spent
        assert await fleet.value("SELECT count(*) FROM budget_charges WHERE settled_usd IS NOT NULL") == len(calls)
    assert len(refusals) > 200
    assert all(error.waiting_for == "budget" and 24 <= error.due_s <= 36 for error in refusals)
    assert [line for line in logs if line["event"] == "database.away"] == []  # no deadlock either
    assert most * len(calls) > budget


async def test_a_new_day_has_a_new_budget(url: str) -> None:
    async with open_fleet(url, settings_of(daily_usd=1)) as fleet:
        yesterday = await fleet.one.admit(call_of(usd=1))
        assert await refusal(fleet.one, call_of(usd=1)) is not None
        for table in ("budget_days", "budget_charges"):
            await fleet.rows(f"UPDATE {table} SET day = day - 1")

        await fleet.one.admit(call_of(usd=1))
        await fleet.one.settle(yesterday, Result(cost_usd=0.25))

        assert await fleet.day() == (1, 1)
        days = await fleet.rows("SELECT charged_usd, reserved_usd FROM budget_days WHERE scope = 'all' ORDER BY day")
        assert [tuple(d.values()) for d in days] == [(Decimal("0.25"), 0), (1, 1)]


async def test_a_call_is_charged_its_maximum_until_its_cost_is_known(url: str) -> None:
    """The first known cost stays; the charge of the chain and that of all chains are equal."""
    table: list[tuple[list[float | None], str, str]] = [
        ([], "0.5", "0.5"),
        ([None], "0.5", "0"),
        ([0.125, 0.125], "0.125", "0"),
        ([0.125, 0.25], "0.125", "0"),
        ([0.75], "0.75", "0"),
    ]
    async with open_fleet(url, settings_of(daily_usd=9)) as fleet:
        for number, (costs, charged, reserved) in enumerate(table):
            permit = await fleet.one.admit(call_of(f"chain-{number}", usd=0.5))
            for cost in costs:
                await fleet.one.settle(permit, Result(cost_usd=cost))

            assert await fleet.day("chain", f"chain-{number}") == (Decimal(charged), Decimal(reserved)), costs
        assert await fleet.day() == (Decimal("2"), Decimal("0.5"))


# --- calls per minute ----------------------------------------------------------------------------------


async def test_no_minute_exceeds_its_limits(url: str) -> None:
    """Random bursts of three processes over ten minutes: no window of 60 s exceeds a limit, some are full."""
    chance = random.Random(11)
    made: dict[uuid.UUID, tuple[float, int]] = {}  # time of the call, passed time included, and its tokens
    elapsed_s, most_requests, most_tokens = 0.0, 25, 20_000
    limit = {"requests_per_minute": most_requests, "tokens_per_minute": most_tokens}
    async with open_fleet(url, settings_of({"main": limit})) as fleet:
        while elapsed_s < 600:
            sizes = {m: [chance.randint(1, 3_000) for _ in range(chance.randint(1, 20))] for m in fleet.members}
            await tried({m: [call_of(tokens=size) for size in listed] for m, listed in sizes.items()})
            calls = "SELECT call_id, tokens, extract(epoch FROM called_at)::float8 AS at FROM provider_calls"
            for row in await fleet.rows(calls):
                made.setdefault(row["call_id"], (elapsed_s + row["at"], row["tokens"]))
            step_s = chance.uniform(1, 25)
            elapsed_s += step_s
            await fleet.pass_time(step_s)

    windows = [[m for m in made.values() if at - MINUTE_S < m[0] <= at] for at, _ in made.values()]
    requests, tokens = max(len(w) for w in windows), max(sum(size for _, size in w) for w in windows)
    assert requests <= most_requests
    assert tokens <= most_tokens
    assert max(requests / most_requests, tokens / most_tokens) > 0.9
    assert len(made) > 60


async def test_a_process_does_not_claim_in_a_full_minute(url: str) -> None:
    """It claims again when there is room for any call; else it would put scores back at once."""
    settings = settings_of({"main": {"tokens_per_minute": 10_000, "max_reply_tokens": 1_000}})
    async with open_fleet(url, settings) as fleet:
        await fleet.one.admit(call_of(tokens=5_000))
        assert waited_for(await refusal(fleet.one, call_of(tokens=6_000))) == "rate_limit"
        has_room = fleet.one.standings()
        permit = await fleet.one.admit(call_of(tokens=4_500))
        assert waited_for(await refusal(fleet.one, call_of(tokens=1_000))) == "rate_limit"
        is_full = fleet.one.standings()
        await fleet.one.settle(permit, Result(tokens=800))

        assert (has_room.others, is_full.others) == (Standing(), Standing("rate_limit"))
        assert fleet.one.standings().others == Standing(), "a call took less than was reserved for it"


# --- circuits ------------------------------------------------------------------------------------------


async def test_a_circuit_opens_probes_once_and_closes(url: str) -> None:
    async with open_fleet(url, settings_of()) as fleet:
        await fleet.fail(4)
        assert await refusal(fleet.one, call_of()) is None
        await fleet.fail(1)

        refusals = [await refusal(member, call_of()) for member in fleet.members]
        assert set(map(waited_for, refusals)) == {"circuit"}
        assert all(e and 25 < e.due_s <= 30 for e in refusals)
        assert all(m.standings().others == Standing("circuit") for m in fleet.members)

        await fleet.pass_time(31)
        assert all(m.standings().others == Standing("circuit", may_probe=True) for m in fleet.members)
        permits, refusals = await tried({m: [call_of() for _ in range(50)] for m in fleet.members})
        assert [p.is_probe for p in permits] == [True]
        assert set(map(waited_for, refusals)) == {"circuit"}
        assert all(0 < e.due_s <= 30 for e in refusals)
        await fleet.refresh()
        assert all(m.standings().others == Standing("circuit") for m in fleet.members)

        await fleet.member(2).settle(permits[0], Result())
        await fleet.refresh()
        permits, refusals = await tried({m: [call_of() for _ in range(50)] for m in fleet.members})
        assert len(permits) == 150
        assert not any(p.is_probe for p in permits)
        await fleet.fail(4)
        assert await refusal(fleet.one, call_of()) is None, "the count began again"


async def test_rejections_are_counted_over_the_fleet_until_a_score_is_answered(url: str) -> None:
    """Also after a restart; an answered trial shows nothing about scores."""
    rejected = Result(is_refused=True, is_rejected=True, reason="HTTP 404")
    async with open_fleet(url, settings_of()) as fleet:
        for n, result in enumerate([rejected, rejected, Result(), rejected, Result(is_trial=True), rejected]):
            await fleet.member(n).settle(await fleet.member(n).admit(call_of()), result)
            await fleet.refresh()
            assert {m.open_circuits()["main"] for m in fleet.members} == {None}
    async with open_fleet(url, settings_of()) as restarted:
        await restarted.refresh()
        await restarted.fail(1, result=rejected)

        refusals = [await refusal(member, call_of()) for member in restarted.members]
        assert set(map(waited_for, refusals)) == {"rejected"}
        assert all(m.standings().others == Standing("rejected") for m in restarted.members)


# --- pauses --------------------------------------------------------------------------------------------

TWO = {"main": {}, "spare": {}}


@pytest.mark.parametrize(
    ("paused", "stopped", "held"),
    [
        pytest.param((None, None), {"a/main", "a/spare", "b/main", "b/spare"}, {"a", "b", "others"}, id="everything"),
        pytest.param((None, "main"), {"a/main", "b/main"}, {"b"}, id="provider"),
        pytest.param(("new", None), set(), {"new"}, id="a-chain-that-is-not-configured"),
    ],
)
async def test_pause_and_resume(
    url: str, paused: tuple[str | None, str | None], stopped: set[str], held: set[str]
) -> None:
    settings = settings_of(TWO, a={}, b={"providers": ("main",)})
    calls = {f"{c}/{p}": call_of(c, provider=p) for c in ("a", "b") for p in TWO}
    async with open_fleet(url, settings) as fleet:
        await fleet.one.pause(*paused, "alice", "maintenance")
        await fleet.refresh()
        refusals = {name: await refusal(fleet.member(1), call) for name, call in calls.items()}
        standings = await fleet.member(2).refreshed_standings()
        lifted = await fleet.member(2).resume(*paused)
        await fleet.refresh()

        assert {name for name, error in refusals.items() if error} == stopped
        assert all(waited_for(e) == "pause" and "alice" in str(e) for e in refusals.values() if e)
        every = standings.by_chain | {"others": standings.others}
        assert {chain for chain, standing in every.items() if standing == Standing("pause")} == held
        assert lifted == 1
        assert [await refusal(fleet.one, call) for call in calls.values()] == [None] * 4


# --- chains that are not claimed -----------------------------------------------------------------------


async def test_a_chain_is_blocked_only_if_all_its_providers_are(url: str) -> None:
    """If one of them waits for a probe, one score of the chain at a time may try."""
    settings = settings_of(TWO, a={}, b={"providers": ("spare",)})
    async with open_fleet(url, settings) as fleet:
        await fleet.fail(5, "main")
        one_open = fleet.one.standings()
        await fleet.fail(5, "spare")
        both_open = fleet.one.standings()
        await fleet.rows("UPDATE provider_states SET open_until = now() WHERE provider = 'main'")
        await fleet.refresh()
        one_half_open = await fleet.one.refreshed_standings()
        await fleet.rows("UPDATE provider_states SET open_until = now() + '1 h' WHERE provider = 'main'")
        await fleet.rows("UPDATE provider_states SET open_until = now() WHERE provider = 'spare'")
        await fleet.refresh()
        the_other_half_open = fleet.one.standings()

    free, shut, half_open = Standing(), Standing("circuit"), Standing("circuit", may_probe=True)
    assert one_open == Standings({"a": free, "b": free}, free)
    assert both_open == Standings({"a": shut, "b": shut}, shut)
    assert one_half_open == Standings({"a": half_open, "b": shut}, half_open)
    assert the_other_half_open == Standings({"a": half_open, "b": half_open}, half_open)


@pytest.mark.parametrize(
    ("charged", "chain_id", "held"),
    [
        pytest.param(1.9, "a", [], id="room-for-a-reply"),
        pytest.param(1.95, "a", ["a"], id="no-room-for-a-reply"),
        pytest.param(1.95, "new", ["new"], id="an-unnamed-chain"),
        pytest.param(1.95, None, [""], id="no-chain"),
        pytest.param(2.95, "free", ["a", "free", "others"], id="all-of-them"),
    ],
)
async def test_a_spent_budget_keeps_scores_from_being_claimed(
    url: str, charged: float, chain_id: str | None, held: list[str]
) -> None:
    """2 USD a chain, 3 for all, at least 0.10 a call: with less than 0.10 left no call can be made."""
    settings = settings_of(daily_usd=3, defaults={"daily_budget_usd": 2}, a={}, free={"daily_budget_usd": None})
    async with open_fleet(url, settings) as fleet:
        await fleet.one.admit(call_of(chain_id, usd=charged))
        standings = await fleet.one.refreshed_standings()

    every = standings.by_chain | {"others": standings.others}
    assert [chain for chain, standing in every.items() if standing == Standing("budget")] == held
    hold = standings.hold(chain_id)
    whose = "all chains" if chain_id == "free" else f"chain {chain_id or ''!r}"
    says = f"the daily budget of {whose} has 0.0500 of {3 if chain_id == 'free' else 2}.0 USD left"
    assert hold == (("budget", f"{says}: the next UTC day has a new budget") if held else None)


# --- token factors -------------------------------------------------------------------------------------


async def report(member: Limits, ratio: float, times: int = 1) -> None:
    """Settle calls whose prompt took so many real tokens per estimated one."""
    result = Result(estimated_tokens=10_000, read_tokens=round(ratio * 10_000))
    for _ in range(times):
        await member.settle(await member.admit(call_of()), result)


async def test_a_token_factor_is_shared_by_the_fleet(url: str) -> None:
    """It falls only if it is still the value compared with, so no process undoes another's rise."""
    async with open_fleet(url, settings_of(TWO)) as fleet:
        one, other = fleet.members[:2]
        for rises, falls, times, factor in (((one, 1.31), (other, 1.12), 1, 1.35), ((other, 2.0), (one, 1.1), 20, 2.0)):
            await report(*rises)
            await report(*falls, times)
            await fleet.refresh()
            assert [m.token_factor("main") for m in fleet.members] == [factor] * 3
        assert fleet.one.token_factor("spare") == 1.0


# --- a database that goes away -------------------------------------------------------------------------

LIMITED = settings_of({"main": {"requests_per_minute": 100, "tokens_per_minute": 100_000}}, daily_usd=1)


@contextlib.asynccontextmanager
async def open_lossy(url: str, settings: Settings) -> AsyncIterator[tuple[DatabaseProxy, Limits, Fleet]]:
    """A process behind a proxy that can lose replies to its first statements, and a fleet without proxy."""
    async with (
        DatabaseProxy(url) as proxy,
        open_fleet(url, settings) as fleet,
        open_fleet(proxy.url, settings, size=1) as lossy,
    ):
        yield proxy, lossy.one, fleet


async def test_a_lost_reply_to_an_admission_keeps_the_budget(url: str) -> None:
    """What was reserved without a reply stays charged, so the repeat finds less."""
    async with open_lossy(url, LIMITED) as (proxy, lossy, fleet):
        proxy.lose_commit_reply("budget_charges")
        permits, refusals = await tried({lossy: [call_of(usd=0.3), call_of(usd=0.6)]})

        assert proxy.replies_lost == 1
        assert (len(permits), len(refusals)) == (0, 2)
        assert await fleet.day() == (Decimal("0.9"), Decimal("0.9"))


async def test_a_lost_reply_to_a_settlement_settles_once(url: str) -> None:
    async with open_lossy(url, LIMITED) as (proxy, lossy, fleet):
        permits = [await fleet.one.admit(call_of(usd=0.1)) for _ in range(5)]
        for permit in permits[:-1]:
            await fleet.one.settle(permit, Result(failed=True, cost_usd=0, tokens=0))
        proxy.lose_commit_reply("budget_charges c SET")
        await lossy.settle(permits[-1], Result(failed=True, cost_usd=0.05, tokens=400))

        assert proxy.replies_lost == 1
        assert await fleet.day() == (Decimal("0.05"), 0)
        assert await fleet.value("SELECT sum(tokens) FROM provider_calls") == 400
        [state] = await fleet.rows("SELECT cardinality(failed_calls) AS failed, cool_down_s FROM provider_states")
        assert state == {"failed": 5, "cool_down_s": 30}


async def test_a_paid_call_waits_for_the_database(url: str) -> None:
    """No call is made without a reservation and no cost is forgotten: both continue with the database."""
    proxy = DatabaseProxy(url)
    async with open_fleet(url, LIMITED) as fleet, open_fleet(proxy.url, LIMITED, size=1) as away:
        permit = await fleet.one.admit(call_of(usd=0.5))
        work = [
            asyncio.create_task(away.one.settle(permit, Result(cost_usd=0.25))),
            asyncio.create_task(away.one.admit(call_of(usd=0.125))),
        ]
        done, _ = await asyncio.wait(work, timeout=0.2)
        assert not done
        async with proxy:
            await asyncio.wait_for(asyncio.gather(*work), 30)

        assert await fleet.day() == (Decimal("0.375"), Decimal("0.125"))
