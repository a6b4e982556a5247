"""What is decided about calls without a database: circuits, pauses, calls per minute, money."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from tarsy_scoring.config.settings import BudgetSettings, ChainSettings, Config, ProviderSettings, Settings
from tarsy_scoring.errors import (
    BudgetExhausted,
    CircuitOpen,
    ConfigurationError,
    KeyRejected,
    QuotaExhausted,
    RateLimited,
)
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.limits.rules import (
    FAILURES_TO_OPEN,
    Call,
    DayBudget,
    LockedState,
    Pause,
    Permit,
    ProviderState,
    Result,
    Standing,
    Standings,
    Window,
    refusal_of,
    require_affordable,
    state_after,
)
from tarsy_scoring.postgres.database import Database

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
WELL = ProviderState("main")
FAILED = Result(failed=True, reason="HTTP 503")


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def opened(**changes: Any) -> ProviderState:
    """A provider whose circuit opened just now."""
    return replace(WELL, kind="circuit", open_until=later(30), cool_down_s=30.0, **changes)


# --- the circuit ---------------------------------------------------------------------------------------


def test_the_fifth_failure_in_a_row_opens_the_circuit() -> None:
    """Four do not; the fifth does, for 30 s, and says why."""
    state = WELL
    for _ in range(FAILURES_TO_OPEN - 1):
        state = state_after(state, uuid.uuid4(), FAILED, NOW)
        assert refusal_of(state, NOW) is None

    state = state_after(state, uuid.uuid4(), FAILED, NOW)

    refusal = refusal_of(state, NOW)
    assert isinstance(refusal, CircuitOpen)
    assert refusal.due_s == 30
    assert "HTTP 503" in str(refusal)


REFUSED = Result(is_refused=True, blocked_s=20.0, reason="HTTP 429")


@pytest.mark.parametrize(
    ("between", "kind"),
    [
        pytest.param(Result(), None, id="answered"),
        pytest.param(Result(blocked_s=20.0), None, id="answered-and-its-limit-used-up"),
        pytest.param(REFUSED, "circuit", id="429"),
        pytest.param(Result(is_refused=True), "circuit", id="400"),
    ],
)
def test_only_an_answer_in_between_starts_the_count_again(between: Result, kind: str | None) -> None:
    """A provider that alternates between 500 and 429 is not well, and what it refuses says nothing."""
    state = WELL
    for result in [FAILED] * 4 + [between] + [FAILED] * 4:
        state = state_after(state, uuid.uuid4(), result, NOW)

    assert state.kind == kind


def test_a_failure_that_asks_for_a_pause_is_both() -> None:
    """A 503 with a long Retry-After blocks the provider, and five of them open its circuit."""
    state = WELL
    for _ in range(FAILURES_TO_OPEN):
        state = state_after(state, uuid.uuid4(), replace(FAILED, blocked_s=60.0), NOW)

    assert (state.kind, state.blocked_for_s(NOW)) == ("circuit", 60)


@pytest.mark.parametrize("result", [REFUSED, Result(is_refused=True)], ids=["429", "400"])
def test_a_refused_probe_makes_way_for_the_next(result: Result) -> None:
    """It neither closes the circuit nor lengthens its cool-down, and nobody waits for it."""
    probe = uuid.uuid4()
    state = state_after(opened(probe_id=probe, probe_until=later(330)), probe, result, later(40))

    assert (state.kind, state.cool_down_s, state.probe_id) == ("circuit", 30, None)
    assert state.shut_for_s(later(40)) == 0
    assert state_after(state, probe, result, later(40)) == state
    assert state.blocked_for_s(later(40)) == (result.blocked_s or 0)


def test_a_failure_told_twice_counts_once() -> None:
    """The reply to a commit may be lost, and the result be told again."""
    call_id = uuid.uuid4()
    state = WELL
    for _ in range(FAILURES_TO_OPEN):
        state = state_after(state, call_id, FAILED, NOW)

    assert state.failed_calls == (call_id,)
    assert state.kind is None


@pytest.mark.parametrize(("opens", "error"), [("key", KeyRejected), ("quota", QuotaExhausted)])
def test_what_somebody_has_to_act_on_opens_it_at_once(opens: Any, error: type[Exception]) -> None:
    """One rejected key is enough, and the error says what to do."""
    refusal = refusal_of(state_after(WELL, uuid.uuid4(), Result(opens=opens, reason="HTTP 401"), NOW), NOW)

    assert isinstance(refusal, error)
    assert {"key": "check the key", "quota": "pay or raise"}[opens] in str(refusal)


def test_each_failed_probe_doubles_the_cool_down() -> None:
    """30 s, then twice as long each time, never longer than 5 min; the same probe again changes nothing."""
    state, waits = opened(), []
    for _ in range(5):
        probe = uuid.uuid4()
        state = state_after(replace(state, probe_id=probe, probe_until=NOW), probe, FAILED, NOW)
        assert state_after(state, probe, FAILED, later(5)) == state
        waits.append(state.shut_for_s(NOW))

    assert waits == [60, 120, 240, 300, 300]


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        pytest.param(FAILED, "circuit", id="failed"),
        pytest.param(Result(opens="key"), "key", id="key"),
        pytest.param(Result(), None, id="answered"),
        pytest.param(Result(blocked_s=5.0), None, id="answered-and-its-limit-used-up"),
    ],
)
def test_the_probe_decides(result: Result, kind: str | None) -> None:
    """What the probe meets is what the circuit stands for from then on; an answer closes it for good."""
    probe = uuid.uuid4()
    state = state_after(
        opened(probe_id=probe, probe_until=later(90), failed_calls=(uuid.uuid4(),)), probe, result, later(40)
    )

    assert state.kind == kind
    assert state.probe_id is None
    if kind is None:
        assert state == replace(WELL, blocked_until=state.blocked_until)


@pytest.mark.parametrize("result", [Result(), FAILED, Result(opens="key")], ids=["answered", "failed", "key"])
def test_calls_from_before_it_opened_change_nothing(result: Result) -> None:
    """Hundreds may be under way when it opens: they neither close it nor lengthen its cool-down."""
    state = opened(probe_id=uuid.uuid4(), probe_until=later(90))

    assert state_after(state, uuid.uuid4(), result, later(10)) == state


@pytest.mark.parametrize(
    ("state", "at_s", "due_s"),
    [
        pytest.param(opened(), 10, 20, id="open"),
        pytest.param(opened(), 30, None, id="half-open"),
        pytest.param(opened(probe_id=uuid.uuid4(), probe_until=later(330)), 30, 30, id="probe-under-way"),
        pytest.param(opened(probe_id=uuid.uuid4(), probe_until=later(40)), 30, 10, id="probe-ends-soon"),
        pytest.param(opened(probe_id=uuid.uuid4(), probe_until=later(40)), 40, None, id="prober-lost"),
        pytest.param(WELL, 0, None, id="closed"),
    ],
)
def test_how_long_an_open_circuit_keeps_a_call_waiting(state: ProviderState, at_s: float, due_s: float | None) -> None:
    """Until the cool-down is over; while somebody probes, not much longer than a probe takes."""
    refusal = refusal_of(state, later(at_s))

    assert (refusal.due_s if refusal else None) == due_s


@pytest.mark.parametrize(
    ("asked_s", "waits_s"),
    [
        pytest.param([20.0], 20, id="one"),
        pytest.param([20.0, 5.0], 20, id="a-shorter-one-takes-nothing-back"),
        pytest.param([5.0, 20.0], 20, id="a-longer-one-counts"),
        pytest.param([1e9], 3600, id="nonsense"),
        pytest.param([0.0], 0, id="none"),
    ],
)
def test_a_pause_that_the_provider_asked_for(asked_s: list[float], waits_s: float) -> None:
    """Nobody calls before it is over; nonsense in a header stops nobody for longer than an hour."""
    state = WELL
    for seconds in asked_s:
        state = state_after(state, uuid.uuid4(), Result(blocked_s=seconds), NOW)

    refusal = refusal_of(state, NOW)

    assert (refusal.due_s if isinstance(refusal, RateLimited) else 0) == waits_s
    assert refusal_of(state, later(waits_s)) is None


def test_of_calls_in_one_transaction_one_probes() -> None:
    """The first one after the cool-down, for as long as its call may take; the others wait for what it meets."""
    half_open = opened(failed_calls=(uuid.uuid4(),))
    locked = LockedState(settings_of({"timeout_s": 100}))
    locked.lock_providers({"main": half_open}, {"main": later(30)})

    probe, other = (locked.decide(Permit(uuid.uuid4(), CALL)) for _ in range(2))

    assert isinstance(probe, Permit)
    assert probe.is_probe
    assert isinstance(other, CircuitOpen)
    assert locked.changed() == [replace(half_open, probe_id=probe.permit_id, probe_until=later(130))]


# --- pauses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chain", "provider", "covered"),
    [
        pytest.param(None, None, {"a/main", "a/spare", "b/main", "b/spare", "a", "b"}, id="everything"),
        pytest.param("a", None, {"a/main", "a/spare", "a"}, id="chain"),
        pytest.param(None, "main", {"a/main", "b/main"}, id="provider"),
        pytest.param("a", "main", {"a/main"}, id="provider-of-chain"),
    ],
)
def test_what_a_pause_covers(chain: str | None, provider: str | None, covered: set[str]) -> None:
    """A pause stops what it names and nothing else; one of a provider does not stop a whole chain."""
    pause = Pause(chain, provider, NOW, "alice", None)

    calls = {f"{c}/{p}" if p else c: pause.covers(c, p) for c in ("a", "b") for p in ("main", "spare", None)}

    assert {name for name, stopped in calls.items() if stopped} == covered


# --- nothing in the way --------------------------------------------------------------------------------


def settings_of(provider: dict[str, Any] | None = None, *, daily_usd: float | None = None, **chain: Any) -> Settings:
    """One provider `main`, one chain `kubernetes`."""
    return Settings(
        config=Config(
            providers={"main": ProviderSettings(**(provider or {}))},
            defaults=ChainSettings(providers=("main",)),
            chains={"kubernetes": ChainSettings(**{"providers": ("main",), **chain})},
            budget=BudgetSettings(daily_usd=daily_usd),
        )
    )


CALL = Call("main", "kubernetes", uuid.uuid4(), 1_000, 0.02)


@pytest.mark.parametrize("result", [Result(), Result(tokens=900, cost_usd=0.01)], ids=["nothing-known", "all-known"])
async def test_without_limits_and_trouble_the_database_is_left_alone(result: Result) -> None:
    """A pool that was never opened cannot even be asked."""
    limits = Limits(Database("postgresql://nowhere/x", "public", pool_size=1), settings_of())

    permit = await limits.admit(CALL)
    await limits.settle(permit, result)

    assert limits.standings() == Standings({"kubernetes": Standing()}, Standing())


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(settings_of({"requests_per_minute": 5}), id="requests-per-minute"),
        pytest.param(settings_of({"tokens_per_minute": 5_000}), id="tokens-per-minute"),
        pytest.param(settings_of(daily_usd=5), id="budget"),
        pytest.param(settings_of(daily_budget_usd=5), id="budget-of-the-chain"),
    ],
)
async def test_with_limits_the_database_is_asked(settings: Settings) -> None:
    """What counts over the fleet is never decided here alone."""
    limits = Limits(Database("postgresql://nowhere/x", "public", pool_size=1), settings)

    with pytest.raises(AssertionError, match="open"):
        await limits.admit(CALL)


async def test_the_budget_of_one_chain_costs_others_nothing() -> None:
    """A chain without a budget does not touch the database because another one has one."""
    settings = settings_of(daily_budget_usd=5)
    limits = Limits(Database("postgresql://nowhere/x", "public", pool_size=1), settings)

    assert (await limits.admit(replace(CALL, chain_id="other"))).is_charged is False


async def test_a_call_without_a_price_under_a_budget() -> None:
    """The start refuses this; a call is never made unreserved because nobody asked at start."""
    limits = Limits(Database("postgresql://nowhere/x", "public", pool_size=1), settings_of(daily_usd=5))

    with pytest.raises(ConfigurationError, match="prices_usd_per_million_tokens"):
        await limits.admit(replace(CALL, most_usd=None))


# --- calls per minute ----------------------------------------------------------------------------------


def window_of(*calls: tuple[float, int], requests: int | None = None, tokens: int | None = None) -> Window:
    """A window in which calls were made so many seconds ago, the oldest first, each of so many tokens."""
    limits = ProviderSettings(requests_per_minute=requests, tokens_per_minute=tokens, max_reply_tokens=256)
    made = [(later(-ago_s), size) for ago_s, size in calls]
    return Window(limits, len(made), sum(size for _, size in made), made)


@pytest.mark.parametrize(
    ("window", "asked_tokens", "waits_s"),
    [
        pytest.param(window_of(requests=1), 1_000, 0, id="empty"),
        pytest.param(window_of((50, 9), (20, 9), requests=3), 1_000, 0, id="the-last-request"),
        pytest.param(window_of((50, 9), (20, 9), requests=2), 1_000, 10, id="one-request-too-many"),
        pytest.param(window_of((50, 300), (20, 300), tokens=1_000), 400, 0, id="exactly-the-tokens-left"),
        pytest.param(window_of((50, 300), (20, 300), tokens=1_000), 401, 10, id="one-token-too-many"),
        pytest.param(window_of((50, 300), (20, 300), tokens=1_000), 701, 40, id="two-calls-have-to-leave"),
        pytest.param(window_of((50, 1), tokens=1_000), 5_000, 10, id="larger-than-a-whole-window"),
        pytest.param(window_of(tokens=1_000), 5_000, 0, id="larger-than-a-whole-empty-window"),
        pytest.param(window_of((50, 300), (20, 9), requests=2, tokens=300), 291, 10, id="both-limits"),
    ],
)
def test_how_long_a_window_keeps_a_call_waiting(window: Window, asked_tokens: int, waits_s: float) -> None:
    """Until enough of what it holds is a minute old; a call that is too large for any window gets an empty one."""
    locked = LockedState(settings_of(), windows={"main": window})
    locked.lock_providers({"main": WELL}, {"main": NOW})

    answer = locked.decide(Permit(uuid.uuid4(), replace(CALL, tokens=asked_tokens), is_counted=True))

    assert (answer.due_s if isinstance(answer, RateLimited) else 0) == waits_s
    assert len(locked.calls) == (0 if waits_s else 1)


def test_calls_of_one_transaction_share_the_minute() -> None:
    """What was admitted a moment before counts; a refused call does not."""
    locked = LockedState(settings_of(), windows={"main": window_of(requests=2)})
    locked.lock_providers({"main": WELL}, {"main": NOW})

    answers = [locked.decide(Permit(uuid.uuid4(), CALL, is_counted=True)) for _ in range(4)]

    assert [isinstance(a, Permit) for a in answers] == [True, True, False, False]


@pytest.mark.parametrize(
    ("window", "is_in_line"),
    [
        pytest.param(window_of((50, 9_500), tokens=10_000), True, id="kept-by-its-size"),
        pytest.param(window_of((50, 10_000), tokens=10_000), True, id="kept-by-a-window-full-to-the-token"),
        pytest.param(window_of((50, 9), requests=1), False, id="kept-by-the-number-of-calls"),
    ],
)
def test_a_large_call_gets_in_line(window: Window, is_in_line: bool) -> None:
    """Where smaller ones might pass it for ever: until it would have room, and 20 s to come for it."""
    locked = LockedState(settings_of(), windows={"main": window})
    locked.lock_providers({"main": WELL}, {"main": NOW})

    locked.decide(Permit(uuid.uuid4(), CALL, is_counted=True))

    place = {"first_in_line": CALL.score_id, "in_line_since": NOW, "in_line_until": later(10 + 20)}
    assert locked.changed() == ([replace(WELL, **place)] if is_in_line else [])


@pytest.mark.parametrize(
    ("first", "waited_s", "is_admitted"),
    [
        pytest.param("another", 60, False, id="somebody-large-has-waited-a-minute"),
        pytest.param("another", 59, True, id="not-for-a-minute-yet"),
        pytest.param("itself", 60, True, id="it-is-that-large-one"),
    ],
)
def test_a_large_call_is_not_passed_for_ever(first: str, waited_s: float, is_admitted: bool) -> None:
    """Smaller calls go first while there is room for them, until the large one has waited for a whole window."""
    who = CALL.score_id if first == "itself" else uuid.uuid4()
    waiting = replace(WELL, first_in_line=who, in_line_since=later(-waited_s), in_line_until=later(20))
    locked = LockedState(settings_of(), windows={"main": window_of(tokens=10_000)})
    locked.lock_providers({"main": waiting}, {"main": NOW})

    answer = locked.decide(Permit(uuid.uuid4(), CALL, is_counted=True))

    assert isinstance(answer, Permit) is is_admitted
    assert (locked.states["main"].first_in_line is None) is (first == "itself")


# --- money ---------------------------------------------------------------------------------------------

DAY_LEFT_S = 5_000.0


def purse_of(limit: str | None, charged: str = "0", reserved: str = "0", *, is_moving: bool = True) -> DayBudget:
    most = None if limit is None else Decimal(limit)
    return DayBudget(NOW.date(), DAY_LEFT_S, most, Decimal(charged), Decimal(reserved), is_moving, "all chains")


def books_of(everybody: DayBudget, chain: DayBudget) -> LockedState:
    return LockedState(settings_of(), budgets={("all", ""): everybody, ("chain", "kubernetes"): chain})


@pytest.mark.parametrize(
    ("everybody", "chain", "waits"),
    [
        pytest.param(purse_of("1", "0.98"), purse_of(None), "no", id="exactly-what-is-left"),
        pytest.param(purse_of("1", "0.981", "0.5"), purse_of(None), "for-others", id="others-may-cost-less"),
        pytest.param(purse_of("1", "0.99", "0.01"), purse_of(None), "for-others", id="others-may-free-just-enough"),
        pytest.param(purse_of("1", "0.981"), purse_of(None), "for-tomorrow", id="all-of-it-is-spent"),
        pytest.param(purse_of("1", "0.981", "0.5", is_moving=False), purse_of(None), "for-tomorrow", id="lost-calls"),
        pytest.param(purse_of("0.01"), purse_of(None), "for-tomorrow", id="more-than-a-whole-day"),
        pytest.param(purse_of(None), purse_of("1", "0.981", "0.5"), "for-others", id="of-the-chain"),
        pytest.param(purse_of("1", "0.99", "0.5"), purse_of("1", "0.99"), "for-tomorrow", id="one-of-two-is-spent"),
        pytest.param(purse_of(None, "1000"), purse_of(None, "1000"), "no", id="no-budget"),
    ],
)
def test_what_a_call_waits_for_when_money_is_short(everybody: DayBudget, chain: DayBudget, waits: str) -> None:
    """About 30 s where calls under way may free enough for it, in every budget it needs; else until after midnight."""
    answer = books_of(everybody, chain).decide(Permit(uuid.uuid4(), CALL, is_charged=True))

    due_s = answer.due_s if isinstance(answer, BudgetExhausted) else 0.0
    bounds = {"no": (0, 0), "for-others": (24, 36), "for-tomorrow": (DAY_LEFT_S + 1, DAY_LEFT_S + 60)}
    least, most = bounds[waits]
    assert least <= due_s <= most


def test_calls_of_one_transaction_share_the_money() -> None:
    """Each reserves its maximum at once, in the budget of all chains and in that of its own, and never half of it."""
    everybody, chain = purse_of("1"), purse_of("0.05")
    locked = books_of(everybody, chain)

    answers = [locked.decide(Permit(uuid.uuid4(), CALL, is_charged=True)) for _ in range(4)]

    assert [isinstance(a, Permit) for a in answers] == [True, True, False, False]
    assert everybody.added == chain.added == sum(charge[-1] for charge in locked.charges) == Decimal("0.04")


@pytest.mark.parametrize(
    ("row", "limit", "is_moving"),
    [
        pytest.param({"scope": "all", "chain_id": ""}, Decimal("5"), True, id="all"),
        pytest.param({"chain_id": "kubernetes"}, Decimal("0.1"), True, id="a-chain-with-its-own"),
        pytest.param({"chain_id": "other"}, None, True, id="a-chain-without"),
        pytest.param({"reserved_for_s": None}, Decimal("0.1"), False, id="never-reserved"),
        pytest.param({"reserved_for_s": 359.0}, Decimal("0.1"), True, id="a-call-may-still-be-under-way"),
        pytest.param({"reserved_for_s": 360.0}, Decimal("0.1"), False, id="no-call-takes-that-long"),
    ],
)
def test_a_purse_from_its_row(row: dict[str, Any], limit: Decimal | None, is_moving: bool) -> None:
    """Its limit as people wrote it; it moves for as long as a call may take, and a minute."""
    whole = {
        "day": NOW.date(),
        "scope": "chain",
        "chain_id": "kubernetes",
        "charged_usd": Decimal(1),
        "reserved_usd": Decimal(0),
        "reserved_for_s": 0.0,
        "day_left_s": 60.0,
    } | row

    budget = DayBudget.of(whole, settings_of({"timeout_s": 300}, daily_usd=5, daily_budget_usd=0.1))

    assert (budget.limit, budget.is_moving) == (limit, is_moving)


# --- budgets at start ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "most_usd", "told"),
    [
        pytest.param(settings_of(daily_usd=5), None, r"budget\.daily_usd: .*'main'.*prices", id="no-prices"),
        pytest.param(settings_of(daily_budget_usd=5), None, r"chains\.kubernetes\.daily_budget_usd: ", id="of-a-chain"),
        pytest.param(settings_of(daily_usd=0.3), 0.4, r"budget\.daily_usd: 0\.3 USD.*'main'.*0\.4", id="too-small"),
        pytest.param(settings_of(daily_budget_usd=0.3), 0.4, r"daily_budget_usd: 0\.3 USD", id="too-small-for-a-chain"),
        pytest.param(settings_of(daily_usd=0), 0.4, r"0 USD", id="nothing-at-all"),
    ],
)
def test_budgets_that_nobody_can_keep(settings: Settings, most_usd: float | None, told: str) -> None:
    """Refused at start, with the key, the provider and what would help."""
    with pytest.raises(ConfigurationError, match=told):
        require_affordable(settings, {"main": most_usd})


@pytest.mark.parametrize(
    ("settings", "most_usd"),
    [
        pytest.param(settings_of(), None, id="no-budget-no-prices"),
        pytest.param(settings_of(daily_usd=0.4), 0.4, id="exactly-one-call"),
        pytest.param(settings_of(daily_usd=0), 0.0, id="nothing-for-a-free-model"),
        pytest.param(settings_of(daily_budget_usd=1, judge={"enabled": False}), None, id="nobody-is-asked"),
    ],
)
def test_budgets_that_can_be_kept(settings: Settings, most_usd: float | None) -> None:
    """No budget needs no price, and neither does a chain without a judge."""
    require_affordable(settings, {"main": most_usd})
