"""What is decided about calls without a database: circuits, refusals, pauses, budgets nobody can keep."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tarsy_scoring.database import Database
from tarsy_scoring.errors import CircuitOpen, ConfigurationError, KeyRejected, QuotaExhausted, RateLimited
from tarsy_scoring.limits import (
    FAILURES_TO_OPEN,
    Call,
    Limits,
    Pause,
    ProviderState,
    Result,
    after,
    refusal_of,
    require_affordable,
)
from tarsy_scoring.settings import BudgetSettings, ChainSettings, Config, ProviderSettings, Settings

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
        state = after(state, uuid.uuid4(), FAILED, NOW)
        assert refusal_of(state, NOW) is None

    state = after(state, uuid.uuid4(), FAILED, NOW)

    refusal = refusal_of(state, NOW)
    assert isinstance(refusal, CircuitOpen)
    assert refusal.due_s == 30
    assert "HTTP 503" in str(refusal)


@pytest.mark.parametrize("between", [Result(), Result(blocked_s=20.0)], ids=["answered", "429"])
def test_an_answer_in_between_starts_the_count_again(between: Result) -> None:
    """Only failures in a row count; a 429 is an answer."""
    state = WELL
    for result in [FAILED] * 4 + [between] + [FAILED] * 4:
        state = after(state, uuid.uuid4(), result, NOW)

    assert state.kind is None


def test_a_failure_told_twice_counts_once() -> None:
    """The reply to a commit may be lost, and the result be told again."""
    call_id = uuid.uuid4()
    state = WELL
    for _ in range(FAILURES_TO_OPEN):
        state = after(state, call_id, FAILED, NOW)

    assert state.failed_calls == (call_id,)
    assert state.kind is None


@pytest.mark.parametrize(("opens", "error"), [("key", KeyRejected), ("quota", QuotaExhausted)])
def test_what_somebody_has_to_act_on_opens_it_at_once(opens: Any, error: type[Exception]) -> None:
    """One rejected key is enough, and the error says what to do."""
    refusal = refusal_of(after(WELL, uuid.uuid4(), Result(opens=opens, reason="HTTP 401"), NOW), NOW)

    assert isinstance(refusal, error)
    assert {"key": "check the key", "quota": "pay or raise"}[opens] in str(refusal)


def test_each_failed_probe_doubles_the_cool_down() -> None:
    """30 s, then twice as long each time, never longer than 5 min; the same probe again changes nothing."""
    state, waits = opened(), []
    for _ in range(5):
        probe = uuid.uuid4()
        state = after(replace(state, probe_id=probe, probe_until=NOW), probe, FAILED, NOW)
        assert after(state, probe, FAILED, later(5)) == state
        waits.append(state.shut_for_s(NOW))

    assert waits == [60, 120, 240, 300, 300]


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        pytest.param(FAILED, "circuit", id="failed"),
        pytest.param(Result(opens="key"), "key", id="key"),
        pytest.param(Result(), None, id="answered"),
        pytest.param(Result(blocked_s=5.0), None, id="429"),
    ],
)
def test_the_probe_decides(result: Result, kind: str | None) -> None:
    """What the probe meets is what the circuit stands for from then on; an answer closes it for good."""
    probe = uuid.uuid4()
    state = after(opened(probe_id=probe, probe_until=later(90), failed_calls=(uuid.uuid4(),)), probe, result, later(40))

    assert state.kind == kind
    assert state.probe_id is None
    if kind is None:
        assert state == replace(WELL, blocked_until=state.blocked_until)


@pytest.mark.parametrize("result", [Result(), FAILED, Result(opens="key")], ids=["answered", "failed", "key"])
def test_calls_from_before_it_opened_change_nothing(result: Result) -> None:
    """Hundreds may be under way when it opens: they neither close it nor lengthen its cool-down."""
    state = opened(probe_id=uuid.uuid4(), probe_until=later(90))

    assert after(state, uuid.uuid4(), result, later(10)) == state


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
        state = after(state, uuid.uuid4(), Result(blocked_s=seconds), NOW)

    refusal = refusal_of(state, NOW)

    assert (refusal.due_s if isinstance(refusal, RateLimited) else 0) == waits_s
    assert refusal_of(state, later(waits_s)) is None


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

    assert limits.claimable().blocked == []


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
