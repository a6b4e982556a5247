"""Many processes and one memory: budgets, calls per minute, circuits and pauses on a real PostgreSQL."""

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
from infrastructure import Postgres, fresh_database, wait_until
from proxy import DatabaseProxy
from tarsy_scoring.config.settings import BudgetSettings, ChainSettings, Config, ProviderSettings, Settings
from tarsy_scoring.errors import BudgetExhausted, CircuitOpen, KeyRejected, Paused, RateLimited, WaitFor
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.limits.rules import Call, Permit, Result, Standing, Standings
from tarsy_scoring.postgres.database import Database, DatabaseAway

FAILED = Result(failed=True, reason="HTTP 503")
MINUTE_S = 60.0


def settings_of(
    providers: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    daily_usd: float | None = None,
    defaults: Mapping[str, Any] | None = None,
    **chains: Mapping[str, Any],
) -> Settings:
    """Settings with these providers (default: one, `main`), which every chain may use, as in the YAML."""
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
    """Several processes that share nothing but the database, and a look past them."""

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
        """Let that much time pass for what is stored of providers and calls, and let everybody look."""
        times = ("open_until", "probe_until", "blocked_until", "in_line_since", "in_line_until")
        moved = ", ".join(f"{t} = {t} - make_interval(secs => $1)" for t in times)
        await self.rows(f"UPDATE provider_states SET {moved}", seconds)
        await self.rows("UPDATE provider_calls SET called_at = called_at - make_interval(secs => $1)", seconds)
        await self.refresh()

    async def day(self, scope: str = "all", chain_id: str = "") -> tuple[Decimal, Decimal]:
        """What is charged today, and how much of it is reserved."""
        [row] = await self.rows(
            "SELECT charged_usd, reserved_usd FROM budget_days "
            "WHERE day = (now() AT TIME ZONE 'UTC')::date AND scope = $1 AND chain_id = $2",
            *(scope, chain_id),
        )
        return row["charged_usd"], row["reserved_usd"]

    async def fail(self, times: int = 5, provider: str = "main", result: Result = FAILED) -> None:
        """Let that many calls in a row end like this, each at another process; then everybody looks."""
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


async def refusal(limits_of_one: Limits, call: Call) -> WaitFor | None:
    """Why this call is not admitted now; None where it is."""
    try:
        await limits_of_one.admit(call)
    except WaitFor as error:
        return error
    return None


async def tried(calls: Mapping[Limits, Sequence[Call]]) -> tuple[list[Permit], list[WaitFor]]:
    """All calls asked for at once: permits and refusals."""

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
    """A migrated database in which nothing is known of any provider, shared with other tests here."""
    async with connected(_shared_url) as connection:
        await connection.execute("TRUNCATE provider_states, provider_calls, pauses, budget_days, budget_charges")
    return _shared_url


# --- budgets -------------------------------------------------------------------------------------------


async def test_a_budget_is_never_exceeded_and_all_that_fits_gets_through(database_url: str) -> None:
    """
    1,000 calls at once at four processes, on five chains: their maxima are five times the budget, what they cost
    is half of it. No interleaving ever exceeds it, not for an instant, and every call is made.
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
            except BudgetExhausted as error:
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
    assert all(24 <= error.due_s <= 36 for error in refusals)
    assert [line for line in logs if line["event"] == "database.away"] == []  # no deadlock either
    assert most * len(calls) > budget


async def test_a_day_ends(url: str) -> None:
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


async def test_what_a_spent_budget_refuses_waits_for_the_next_day(url: str) -> None:
    async with open_fleet(url, settings_of(daily_usd=1)) as fleet:
        await fleet.one.settle(await fleet.one.admit(call_of(usd=1)), Result(cost_usd=1))
        refused = await refusal(fleet.one, call_of(usd=1))
        utc = "(now() AT TIME ZONE 'UTC')"
        left_s = await fleet.value(f"SELECT extract(epoch FROM {utc}::date + 1 - {utc})::float8")

    assert isinstance(refused, BudgetExhausted)
    assert 0 < refused.due_s - left_s < 3_600


async def test_what_a_call_is_charged(url: str) -> None:
    """Its maximum until its cost is known, then that, once; for all chains and for its own alike."""
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


async def test_who_is_cancelled_before_the_database_is_asked_leaves_nothing(url: str) -> None:
    """A call that nobody waits for any more is not reserved when its turn comes; one that is being written stays."""
    async with open_fleet(url, settings_of(daily_usd=1), size=1) as fleet:
        await fleet.one.admit(call_of(usd=0.1))
        async with connected(url) as somebody, somebody.transaction():
            await somebody.execute("SELECT FROM budget_days FOR UPDATE")
            asking = []
            for writers in (1, 2):
                asking.append(asyncio.create_task(fleet.one.admit(call_of(usd=0.1))))
                await wait_until(lambda n=writers: _waits(fleet, n), 30, "every writer to wait for the lock")
            asking += [asyncio.create_task(fleet.one.admit(call_of(usd=0.1))) for _ in range(4)]
            await asyncio.sleep(0)
            for task in asking[2:]:
                task.cancel()
            await asyncio.wait(asking[2:])
        await asyncio.gather(*asking[:2])
        await fleet.one.admit(call_of(usd=0.1))

        assert await fleet.value("SELECT count(*) FROM budget_charges") == 4
        assert await fleet.day() == (Decimal("0.4"), Decimal("0.4"))


async def _waits(fleet: Fleet, many: int) -> bool:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    return int(await fleet.value(waiting)) >= many


# --- calls per minute ----------------------------------------------------------------------------------


async def test_no_minute_ever_holds_more_than_its_limits(url: str) -> None:
    """Bursts at three processes, at random distances, for ten minutes: no window of 60 s is over, most are full."""
    chance = random.Random(11)
    made: dict[uuid.UUID, tuple[float, int]] = {}  # when, in a time in which passed time counts; and tokens
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


async def test_a_call_counts_from_when_its_turn_came(url: str) -> None:
    """Whoever waits for others to decide has not called yet: its minute begins when it is admitted."""
    async with open_fleet(url, settings_of({"main": {"requests_per_minute": 20}})) as fleet:
        await fleet.one.admit(call_of())
        async with connected(url) as somebody, somebody.transaction():
            await somebody.execute("SELECT FROM provider_states FOR UPDATE")
            asking = asyncio.create_task(fleet.one.admit(call_of()))
            await wait_until(lambda: _waits(fleet, 1), 30, "it to wait for its turn")
            still_waiting = await fleet.value("SELECT clock_timestamp()")
        permit = await asking

        called_at = await fleet.value("SELECT called_at FROM provider_calls WHERE call_id = $1", permit.permit_id)
        assert called_at > still_waiting


async def test_what_a_call_really_used_counts(url: str) -> None:
    """Tokens that were reserved and not used are there for others; an unknown number stays as estimated."""
    async with open_fleet(url, settings_of({"main": {"tokens_per_minute": 1_000}})) as fleet:
        for used, room in ((100, 900), (900, 100), (None, 100), (0, 1_000)):
            permit = await fleet.one.admit(call_of(tokens=900))
            await fleet.one.settle(permit, Result(tokens=used))

            assert await refusal(fleet.member(1), call_of(tokens=room)) is None
            assert isinstance(await refusal(fleet.member(1), call_of(tokens=1)), RateLimited)
            await fleet.pass_time(100)  # also the place in the line of a refused call is over


async def test_a_full_minute_keeps_its_process_from_claiming(url: str) -> None:
    """Nothing is claimed only to be put back: not until there is room for any call at all."""
    settings = settings_of({"main": {"tokens_per_minute": 10_000, "max_reply_tokens": 1_000}})
    async with open_fleet(url, settings) as fleet:
        await fleet.one.admit(call_of(tokens=5_000))
        assert isinstance(await refusal(fleet.one, call_of(tokens=6_000)), RateLimited)
        has_room = fleet.one.standings()
        permit = await fleet.one.admit(call_of(tokens=4_500))
        assert isinstance(await refusal(fleet.one, call_of(tokens=1_000)), RateLimited)
        is_full = fleet.one.standings()
        await fleet.one.settle(permit, Result(tokens=800))

        assert (has_room.others, is_full.others) == (Standing(), Standing("rate_limit"))
        assert fleet.one.standings().others == Standing(), "a call took less than was reserved for it"


# --- circuits ------------------------------------------------------------------------------------------


async def test_the_life_of_a_circuit(url: str) -> None:
    async with open_fleet(url, settings_of()) as fleet:
        await fleet.fail(4)
        assert await refusal(fleet.one, call_of()) is None
        await fleet.fail(1)

        refusals = [await refusal(member, call_of()) for member in fleet.members]
        assert {type(e) for e in refusals} == {CircuitOpen}
        assert all(e and 25 < e.due_s <= 30 for e in refusals)
        assert all(m.standings().others == Standing("circuit") for m in fleet.members)

        await fleet.pass_time(31)
        assert all(m.standings().others == Standing("circuit", may_probe=True) for m in fleet.members)
        permits, refusals = await tried({m: [call_of() for _ in range(50)] for m in fleet.members})
        assert [p.is_probe for p in permits] == [True]
        assert {type(e) for e in refusals} == {CircuitOpen}
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


async def test_a_pause_that_the_provider_asked_for_holds_for_all(url: str) -> None:
    async with open_fleet(url, settings_of(kubernetes={})) as fleet:
        await fleet.fail(1, result=Result(is_refused=True, blocked_s=20))

        late = await refusal(fleet.member(1), call_of())
        assert isinstance(late, RateLimited)
        assert 15 < late.due_s <= 20
        assert fleet.member(2).standings().by_chain == {"kubernetes": Standing("rate_limit")}
        await fleet.pass_time(20)
        assert await refusal(fleet.member(1), call_of()) is None


async def test_a_look_does_not_undo_what_was_learned_meanwhile(url: str) -> None:
    """A look that began before our own transaction ended shows less than we know."""
    async with open_fleet(url, settings_of(), size=1) as fleet:
        await fleet.rows("INSERT INTO provider_states (provider) VALUES ('main')")
        permit = await fleet.one.admit(call_of())
        async with connected(url) as somebody, somebody.transaction():
            await somebody.execute("LOCK TABLE pauses")  # the look has read the providers, and waits here
            looking = asyncio.create_task(fleet.one.refresh())
            await wait_until(lambda: _waits(fleet, 1), 30, "the look to wait")
            await fleet.one.settle(permit, Result(opens="key"))
        await looking

        assert isinstance(await refusal(fleet.one, call_of()), KeyRejected)


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
        assert all(isinstance(e, Paused) and "alice" in str(e) for e in refusals.values() if e)
        every = standings.by_chain | {"others": standings.others}
        assert {chain for chain, standing in every.items() if standing == Standing("pause")} == held
        assert lifted == 1
        assert [await refusal(fleet.one, call) for call in calls.values()] == [None] * 4


async def test_what_resume_lifts(url: str) -> None:
    """What matches all that is named, and everything where nothing is; it says how many."""
    every: list[tuple[str | None, str | None]] = [
        (None, None),
        ("a", None),
        ("a", "main"),
        ("b", "main"),
        (None, "main"),
    ]
    table = {(None, None): 5, ("a", None): 2, (None, "main"): 3, ("a", "main"): 1, ("c", None): 0}
    async with open_fleet(url, settings_of(TWO)) as fleet:
        for named, lifted in table.items():
            for pause in every:
                await fleet.one.pause(*pause, "alice", None)

            assert (await fleet.one.resume(*named), len(await fleet.one.pauses())) == (lifted, 5 - lifted)
            await fleet.one.resume(None, None)


async def test_a_chain_without_a_judge_waits_for_no_provider(url: str) -> None:
    """Metrics and gates alone need nobody's key; only a pause of the chain stops them."""
    async with open_fleet(url, settings_of(gated={"judge": {"enabled": False}})) as fleet:
        await fleet.fail(1, result=Result(opens="key"))
        without_key = fleet.one.standings()
        await fleet.one.pause("gated", None, "alice", None)
        await fleet.refresh()

        assert without_key == Standings({"gated": Standing()}, Standing("key"))
        assert fleet.one.standings().by_chain == {"gated": Standing("pause")}


# --- what the claim passes over ------------------------------------------------------------------------


async def test_a_chain_is_blocked_when_its_last_provider_is(url: str) -> None:
    """One provider that may be called is enough; where one waits for a probe, one score at a time may try."""
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
    """2 USD a chain, 3 for all, at least 0.10 a call: less than that left means that none can be made."""
    settings = settings_of(daily_usd=3, defaults={"daily_budget_usd": 2}, a={}, free={"daily_budget_usd": None})
    async with open_fleet(url, settings) as fleet:
        await fleet.one.admit(call_of(chain_id, usd=charged))
        standings = await fleet.one.refreshed_standings()

    every = standings.by_chain | {"others": standings.others}
    assert [chain for chain, standing in every.items() if standing == Standing("budget")] == held
    assert standings.reason(chain_id) == ("budget" if held else None)


async def test_shares_of_budgets(url: str) -> None:
    """Of all chains, of those that are named or charged, and of scores without a chain; no money is a spent budget."""
    free = {"daily_budget_usd": None}
    settings = settings_of(daily_usd=4, defaults={"daily_budget_usd": 2}, a={}, free=free, none={"daily_budget_usd": 0})
    async with open_fleet(url, settings) as fleet:
        for chain, usd in (("a", 0.5), ("new", 1.0), ("free", 0.5)):
            await fleet.one.admit(call_of(chain, usd=usd))
        await fleet.refresh()
        shares = fleet.one.budget_shares()

    chains = {chain: share for (scope, chain), share in shares.items() if scope == "chain"}
    assert shares["all", ""] == 0.5
    assert chains == {"": 0.0, "a": 0.25, "new": 0.5, "none": 1.0}


async def test_a_budget_of_before_midnight_blocks_nobody(url: str) -> None:
    async with open_fleet(url, settings_of(daily_usd=1)) as fleet:
        await fleet.one.admit(call_of(usd=1.0))
        spent = await fleet.one.refreshed_standings()
        await fleet.rows("UPDATE budget_days SET day = day - 1")

        assert (spent.others.reason, (await fleet.one.refreshed_standings()).others.reason) == ("budget", None)


# --- token factors -------------------------------------------------------------------------------------


def reported(ratio: float, estimated: int = 10_000) -> Result:
    """An answer whose prompt took so many real tokens per estimated one."""
    return Result(estimated_tokens=estimated, read_tokens=round(ratio * estimated))


async def report(member: Limits, *results: Result, provider: str = "main") -> None:
    for result in results:
        await member.settle(await member.admit(call_of(provider=provider)), result)


async def factors(fleet: Fleet) -> list[float]:
    await fleet.refresh()
    return [m.token_factor("main") for m in fleet.members]


async def test_a_token_factor_is_the_fleets(url: str) -> None:
    """It falls only from the value it was compared with, so that no process undoes what another learned."""
    async with open_fleet(url, settings_of(TWO)) as fleet:
        await report(fleet.one, reported(1.31))
        await report(fleet.member(1), reported(1.12))
        assert await factors(fleet) == [1.35] * 3
        await report(fleet.member(1), reported(2.0))
        await report(fleet.one, *[reported(1.1)] * 20)

        assert await factors(fleet) == [2.0] * 3
        assert fleet.one.token_factor("spare") == 1.0


async def test_a_factor_is_of_a_model(url: str) -> None:
    async with open_fleet(url, settings_of({"main": {"model": "old"}})) as fleet:
        await report(fleet.one, reported(2.0))
        assert await factors(fleet) == [2.0] * 3

    async with open_fleet(url, settings_of({"main": {"model": "new"}})) as fleet:
        assert await factors(fleet) == [1.0] * 3
        await report(fleet.one, reported(1.3))
        assert await factors(fleet) == [1.3] * 3
        assert await fleet.value("SELECT token_model FROM provider_states") == "new"


# --- a database that goes away -------------------------------------------------------------------------

LIMITED = settings_of({"main": {"requests_per_minute": 100, "tokens_per_minute": 100_000}}, daily_usd=1)


@contextlib.asynccontextmanager
async def open_lossy(url: str, settings: Settings) -> AsyncIterator[tuple[DatabaseProxy, Limits, Fleet]]:
    """A process behind a proxy that can lose replies to statements it sends for the first time, and a sound fleet."""
    async with (
        DatabaseProxy(url) as proxy,
        open_fleet(url, settings) as fleet,
        open_fleet(proxy.url, settings, size=1) as lossy,
    ):
        yield proxy, lossy.one, fleet


async def test_the_reply_to_an_admission_is_lost(url: str) -> None:
    """Calls that were reserved without our knowing are found again: each is counted once and charged once."""
    async with open_lossy(url, LIMITED) as (proxy, lossy, fleet):
        proxy.lose_commit_reply("budget_charges")
        permits, refusals = await tried({lossy: [call_of(usd=0.3) for _ in range(5)]})

        assert proxy.replies_lost == 1
        assert (len(permits), len(refusals)) == (3, 2)
        assert await fleet.day() == (Decimal("0.9"), Decimal("0.9"))
        assert await fleet.value("SELECT count(*) FROM provider_calls") == 3
        for permit in permits:
            await fleet.one.settle(permit, Result(cost_usd=0.1))
        assert await fleet.day() == (Decimal("0.3"), 0)


async def test_the_reply_to_a_probe_is_lost(url: str) -> None:
    async with open_lossy(url, settings_of()) as (proxy, lossy, fleet):
        await fleet.fail(5)
        await fleet.pass_time(31)
        await lossy.refresh()
        proxy.lose_commit_reply("provider_states")
        permit = await lossy.admit(call_of())

        assert proxy.replies_lost == 1
        assert permit.is_probe
        await lossy.settle(permit, Result())
        assert await refusal(lossy, call_of()) is None


async def test_the_reply_to_a_settlement_is_lost(url: str) -> None:
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


async def test_what_does_not_wait_for_the_database(url: str) -> None:
    proxy = DatabaseProxy(url)
    async with open_fleet(proxy.url, settings_of(), size=1) as fleet:
        async with proxy:
            await fleet.one.pause(None, None, "alice", None)
            await fleet.one.refresh()
        for look in (fleet.one.refresh, fleet.one.pauses, fleet.one.refreshed_standings):
            with pytest.raises(DatabaseAway):
                await look()

        assert fleet.one.standings().others == Standing("pause")
        assert isinstance(await refusal(fleet.one, call_of()), Paused)


async def test_a_paid_call_waits_for_the_database(url: str) -> None:
    """Nothing is called unreserved, and no cost is forgotten: both go on when the database is back."""
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


# --- plans ---------------------------------------------------------------------------------------------
