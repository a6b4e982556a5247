"""Decisions about calls without a database: circuits, pauses, calls per minute, budgets."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from tarsy_scoring.config.chains import BudgetSettings, ChainSettings, Config, ProviderSettings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError, WaitFor
from tarsy_scoring.limits.budgets import DayBudget, require_affordable
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.limits.rules import (
    FAILURES_TO_OPEN,
    Call,
    LockedState,
    Permit,
    ProviderState,
    Result,
    Standing,
    Standings,
    Window,
    refusal_of,
    state_after,
)
from tarsy_scoring.postgres.database import Database

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
WELL = ProviderState("main", read_at=NOW)
FAILED = Result(failed=True, reason="HTTP 503")


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def opened(**changes: Any) -> ProviderState:
    """A provider whose circuit opened just now."""
    return replace(WELL, kind="circuit", open_until=later(30), cool_down_s=30.0, **changes)


# --- the circuit ---------------------------------------------------------------------------------------


def test_the_fifth_failure_in_a_row_opens_the_circuit() -> None:
    state = WELL
    for _ in range(FAILURES_TO_OPEN - 1):
        state = state_after(state, uuid.uuid4(), FAILED, NOW)
        assert refusal_of(state, NOW) is None

    state = state_after(state, uuid.uuid4(), FAILED, NOW)

    refusal = refusal_of(state, NOW)
    assert refusal is not None
    assert (refusal.waiting_for, refusal.due_s) == ("circuit", 30)
    assert "HTTP 503" in str(refusal)


REFUSED = Result(is_refused=True, blocked_s=20.0, reason="HTTP 429")


def test_a_refused_probe_makes_way_for_the_next() -> None:
    """It neither closes the circuit nor lengthens its cool-down."""
    for result in (REFUSED, Result(is_refused=True)):
        probe = uuid.uuid4()
        state = state_after(opened(probe_id=probe, probe_until=later(330)), probe, result, later(40))

        assert (state.kind, state.cool_down_s, state.probe_id) == ("circuit", 30, None)
        assert state.shut_for_s(later(40)) == 0
        assert state_after(state, probe, result, later(40)) == state
        assert state.blocked_for_s(later(40)) == (result.blocked_s or 0)


def test_a_failure_reported_twice_counts_once() -> None:
    call_id = uuid.uuid4()
    state = WELL
    for _ in range(FAILURES_TO_OPEN):
        state = state_after(state, call_id, FAILED, NOW)

    assert state.failed_calls == (call_id,)
    assert state.kind is None


def test_a_rejected_key_and_a_used_up_quota_open_it_at_once() -> None:
    """One rejection is enough, and the error says what to do."""
    table: list[tuple[Any, str]] = [("key", "check the key"), ("quota", "pay or raise")]
    for opens, advice in table:
        refusal = refusal_of(state_after(WELL, uuid.uuid4(), Result(opens=opens, reason="HTTP 401"), NOW), NOW)

        assert refusal is not None
        assert refusal.waiting_for == opens
        assert advice in str(refusal)


def test_each_failed_probe_doubles_the_cool_down() -> None:
    """30 s, then twice as long each time, never longer than 5 min; the same probe again changes nothing."""
    state, waits = opened(), []
    for _ in range(5):
        probe = uuid.uuid4()
        state = state_after(replace(state, probe_id=probe, probe_until=NOW), probe, FAILED, NOW)
        assert state_after(state, probe, FAILED, later(5)) == state
        waits.append(state.shut_for_s(NOW))

    assert waits == [60, 120, 240, 300, 300]


def test_the_probe_decides_about_the_circuit() -> None:
    """An answer closes the circuit and keeps the other state; another failure names the new reason."""
    table = [(FAILED, "circuit"), (Result(opens="key"), "key"), (Result(), None), (Result(blocked_s=5.0), None)]
    for result, kind in table:
        probe = uuid.uuid4()
        half_open = opened(probe_id=probe, probe_until=later(90), failed_calls=(uuid.uuid4(),), token_factor=1.5)
        state = state_after(half_open, probe, result, later(40))

        assert (state.kind, state.probe_id, state.token_factor) == (kind, None, 1.5)
        if kind is None:
            assert state == replace(WELL, blocked_until=state.blocked_until, token_factor=1.5)


def test_calls_from_before_it_opened_change_nothing() -> None:
    """Hundreds of calls may be under way then; they neither close the circuit nor lengthen its cool-down."""
    state = opened(probe_id=uuid.uuid4(), probe_until=later(90))
    for result in (Result(), FAILED, Result(opens="key")):
        assert state_after(state, uuid.uuid4(), result, later(10)) == state


def test_a_call_waits_for_the_cool_down_or_the_probe() -> None:
    """During a probe, a call waits little longer than a probe takes."""
    probed, nearly_over = ({"probe_id": uuid.uuid4(), "probe_until": later(s)} for s in (330, 40))
    table = [
        (opened(), 10, 20),
        (opened(), 30, None),
        (opened(**probed), 29.5, 300.5),
        (opened(**probed), 30, 30),
        (opened(**nearly_over), 30, 10),
        (opened(**nearly_over), 40, None),
        (WELL, 0, None),
    ]
    for row, (state, at_s, due_s) in enumerate(table):
        refusal = refusal_of(state, later(at_s))

        assert (refusal.due_s if refusal else None) == due_s, row


def test_a_wait_that_the_provider_asks_for_is_kept() -> None:
    """The longest wait counts, and an absurd header stops calls for at most an hour."""
    table = [([20.0], 20), ([20.0, 5.0], 20), ([5.0, 20.0], 20), ([1e9], 3600), ([0.0], 0)]
    for asked_s, waits_s in table:
        state = WELL
        for seconds in asked_s:
            state = state_after(state, uuid.uuid4(), Result(blocked_s=seconds), NOW)
        refusal = refusal_of(state, NOW)

        assert (refusal.due_s if isinstance(refusal, WaitFor) else 0) == waits_s
        assert refusal_of(state, later(waits_s)) is None


def test_of_calls_in_one_transaction_one_probes() -> None:
    """The first after the cool-down probes, for as long as its call may take; the others wait."""
    half_open = opened(failed_calls=(uuid.uuid4(),), read_at=later(30))
    as_locked = {"main": half_open}
    locked = LockedState(settings_of({"timeout_s": 100}), as_locked=as_locked, states=dict(as_locked))

    probe, other = (locked.decide(Permit(uuid.uuid4(), CALL)) for _ in range(2))

    assert isinstance(probe, Permit)
    assert probe.is_probe
    assert isinstance(other, WaitFor)
    assert other.waiting_for == "circuit"
    assert locked.changed() == [replace(half_open, probe_id=probe.permit_id, probe_until=later(130))]


# --- rejected requests ---------------------------------------------------------------------------------

REJECTED = Result(is_refused=True, is_rejected=True, reason="HTTP 404")
TRIAL_REJECTED = Result(is_refused=True, is_trial=True, opens="rejected", reason="HTTP 404")
A, B, C, D = (uuid.uuid4() for _ in range(4))
ANSWER, TRIAL_ANSWER, OTHER = Result(), Result(is_trial=True), replace(REJECTED, reason="HTTP 400")
OPENED = [(A, REJECTED), (B, REJECTED), (C, REJECTED)]
REJECTIONS: dict[str, tuple[list[tuple[uuid.UUID, Result]], str | None, float, int]] = {
    "two scores": (OPENED[:2], None, 0, 2),
    "three scores": (OPENED, "rejected", 30, 3),
    "one score three times": ([(A, REJECTED)] * 3, None, 0, 1),
    "an answer between them": ([*OPENED[:2], (D, ANSWER), (C, REJECTED)], None, 0, 1),
    "a failure between them": ([*OPENED[:2], (D, FAILED), (C, REJECTED)], None, 0, 1),
    "an answered trial between them": ([*OPENED[:2], (B, TRIAL_ANSWER), (C, REJECTED)], "rejected", 30, 3),
    "for another reason": ([*OPENED[:2], (C, OTHER)], None, 0, 1),
    "a rejected trial": ([(A, REJECTED), (A, TRIAL_REJECTED)], "rejected", 30, 1),
    "half open: another score": ([*OPENED, (D, REJECTED)], "rejected", 60, 4),
    "half open: a known score awaits its trial": ([*OPENED, (A, REJECTED)], "rejected", 0, 3),
    "half open: the trial is rejected": ([*OPENED, (A, REJECTED), (A, TRIAL_REJECTED)], "rejected", 60, 3),
    "half open: the trial is answered": ([*OPENED, (A, REJECTED), (A, TRIAL_ANSWER)], None, 0, 3),
    "then the score is rejected": ([*OPENED, (A, REJECTED), (A, TRIAL_ANSWER), (A, REJECTED)], None, 0, 3),
    "then another one is": ([*OPENED, (A, REJECTED), (A, TRIAL_ANSWER), (D, REJECTED)], "rejected", 30, 4),
    "half open: a score is answered": ([*OPENED, (D, ANSWER)], None, 0, 0),
    "a replaced key": ([(A, Result(opens="key")), (B, REJECTED)], "key", 0, 1),
    "many": ([(uuid.uuid4(), REJECTED) for _ in range(20)], "rejected", 300, 10),
}


@pytest.mark.parametrize(("calls", "kind", "shut_s", "known"), REJECTIONS.values(), ids=REJECTIONS)
def test_a_rejection_is_about_the_request_only_if_others_are_answered(
    calls: list[tuple[uuid.UUID, Result]], kind: str | None, shut_s: float, known: int
) -> None:
    """A call of an open circuit is made as soon as it is half open."""
    state, now = WELL, NOW
    for score, result in calls:
        call = uuid.uuid4()
        if state.kind is not None:
            now += timedelta(seconds=state.shut_for_s(now))
            state = replace(state, probe_id=call, probe_until=later(1e6))
        state = state_after(state, call, result, now, score)
        assert state_after(state, call, result, now, score) == state, "settled twice"

    assert (state.kind, state.shut_for_s(now), len(state.rejected_scores)) == (kind, shut_s, known)
    assert state.probe_id is None
    refusal = refusal_of(state, now)
    assert (refusal and refusal.waiting_for) == (kind if shut_s > 0 else None)


# --- without limits ------------------------------------------------------------------------------------


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


def unopened(settings: Settings) -> Limits:
    """Limits over a pool that was never opened, so that any query fails."""
    return Limits(Database("postgresql://nowhere/x", "public", pool_size=1), settings)


async def test_without_limits_and_failures_the_database_is_not_queried() -> None:
    limits = unopened(settings_of())
    for result in (Result(), Result(tokens=900, cost_usd=0.01)):
        await limits.settle(await limits.admit(CALL), result)

    assert limits.standings() == Standings({"kubernetes": Standing()}, Standing())


async def test_a_call_without_a_price_under_a_budget_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="prices_usd_per_million_tokens"):
        await unopened(settings_of(daily_usd=5)).admit(replace(CALL, most_usd=None))


# --- calls per minute ----------------------------------------------------------------------------------


def window_of(*calls: tuple[float, int], requests: int | None = None, tokens: int | None = None) -> Window:
    """A window with calls made so many seconds ago, oldest first, each of so many tokens."""
    limits = ProviderSettings(requests_per_minute=requests, tokens_per_minute=tokens, max_reply_tokens=256)
    made = [(later(-ago_s), size) for ago_s, size in calls]
    return Window(limits, len(made), sum(size for _, size in made), made)


def locked_with(window: Window, state: ProviderState = WELL) -> LockedState:
    as_locked = {"main": state}
    return LockedState(settings_of(), as_locked=as_locked, states=dict(as_locked), windows={"main": window})


def test_a_call_waits_until_the_window_has_room() -> None:
    """Room comes as calls become a minute old; a call too large for any window gets an empty one."""
    two = ((50, 300), (20, 300))
    table = [
        (window_of(requests=1), 1_000, 0),
        (window_of((50, 9), (20, 9), requests=3), 1_000, 0),
        (window_of((50, 9), (20, 9), requests=2), 1_000, 10),
        (window_of(*two, tokens=1_000), 400, 0),
        (window_of(*two, tokens=1_000), 401, 10),
        (window_of(*two, tokens=1_000), 701, 40),
        (window_of((50, 1), tokens=1_000), 5_000, 10),
        (window_of(tokens=1_000), 5_000, 0),
        (window_of((50, 300), (20, 9), requests=2, tokens=300), 291, 10),
    ]
    for row, (window, asked_tokens, waits_s) in enumerate(table):
        locked = locked_with(window)
        answer = locked.decide(Permit(uuid.uuid4(), replace(CALL, tokens=asked_tokens), is_counted=True))

        assert (answer.due_s if isinstance(answer, WaitFor) else 0) == waits_s, row
        assert len(locked.calls) == (0 if waits_s else 1), row


# --- budgets -------------------------------------------------------------------------------------------

DAY_LEFT_S = 5_000.0


def budget_of(limit: str | None, charged: str = "0", reserved: str = "0", *, is_moving: bool = True) -> DayBudget:
    most = None if limit is None else Decimal(limit)
    return DayBudget(NOW.date(), DAY_LEFT_S, most, Decimal(charged), Decimal(reserved), is_moving, "all chains")


def locked_days(everyone: DayBudget, chain: DayBudget) -> LockedState:
    return LockedState(settings_of(), budgets={("all", ""): everyone, ("chain", "kubernetes"): chain})


def test_a_call_beyond_the_budget_waits_for_other_calls_or_midnight() -> None:
    """About 30 s if calls under way may free enough in every budget it needs; else until after midnight."""
    no, others, tomorrow = (0, 0), (24, 36), (DAY_LEFT_S + 1, DAY_LEFT_S + 60)
    table = [
        (budget_of("1", "0.98"), budget_of(None), no),
        (budget_of("1", "0.981", "0.5"), budget_of(None), others),
        (budget_of("1", "0.99", "0.01"), budget_of(None), others),
        (budget_of("1", "0.981"), budget_of(None), tomorrow),
        (budget_of("1", "0.981", "0.5", is_moving=False), budget_of(None), tomorrow),
        (budget_of("0.01"), budget_of(None), tomorrow),
        (budget_of(None), budget_of("1", "0.981", "0.5"), others),
        (budget_of("1", "0.99", "0.5"), budget_of("1", "0.99"), tomorrow),
        (budget_of(None, "1000"), budget_of(None, "1000"), no),
    ]
    for row, (everyone, chain, (least, most)) in enumerate(table):
        answer = locked_days(everyone, chain).decide(Permit(uuid.uuid4(), CALL, is_charged=True))

        due_s = answer.due_s if isinstance(answer, WaitFor) else 0.0
        assert least <= due_s <= most, row


def test_calls_of_one_transaction_share_the_budgets() -> None:
    """Each reserves in the budget of all chains and in that of its own, in both or in neither."""
    everyone, chain = budget_of("1"), budget_of("0.05")
    locked = locked_days(everyone, chain)

    answers = [locked.decide(Permit(uuid.uuid4(), CALL, is_charged=True)) for _ in range(4)]

    assert [isinstance(a, Permit) for a in answers] == [True, True, False, False]
    assert everyone.added == chain.added == sum(charge[-1] for charge in locked.charges) == Decimal("0.04")


def test_a_budget_combines_its_row_with_the_settings() -> None:
    """The limit is that of the settings; the budget moves for as long as a call may take, and a minute."""
    whole = {"day": NOW.date(), "scope": "chain", "chain_id": "kubernetes", "day_left_s": 60.0, "reserved_for_s": 0.0}
    whole |= {"charged_usd": Decimal(1), "reserved_usd": Decimal(0)}
    table: list[tuple[dict[str, Any], Decimal | None, bool]] = [
        ({"scope": "all", "chain_id": ""}, Decimal("5"), True),
        ({"chain_id": "kubernetes"}, Decimal("0.1"), True),
        ({"chain_id": "other"}, None, True),
        ({"reserved_for_s": None}, Decimal("0.1"), False),
        ({"reserved_for_s": 359.0}, Decimal("0.1"), True),
        ({"reserved_for_s": 360.0}, Decimal("0.1"), False),
    ]
    settings = settings_of({"timeout_s": 300}, daily_usd=5, daily_budget_usd=0.1)
    for row, limit, is_moving in table:
        budget = DayBudget.of(whole | row, settings)

        assert (budget.limit, budget.is_moving) == (limit, is_moving)


# --- budgets at start ----------------------------------------------------------------------------------


def test_budgets_that_cannot_be_kept_are_refused_at_the_start() -> None:
    """The error has the key, the provider and what would help."""
    table = [
        (settings_of(daily_usd=5), None, r"budget\.daily_usd: .*'main'.*prices"),
        (settings_of(daily_budget_usd=5), None, r"chains\.kubernetes\.daily_budget_usd: "),
        (settings_of(daily_usd=0.3), 0.4, r"budget\.daily_usd: 0\.3 USD.*'main'.*0\.4"),
        (settings_of(daily_budget_usd=0.3), 0.4, r"daily_budget_usd: 0\.3 USD"),
        (settings_of(daily_usd=0), 0.4, r"0 USD"),
    ]
    for settings, most_usd, says in table:
        with pytest.raises(ConfigurationError, match=says):
            require_affordable(settings, {"main": most_usd})
