"""Which provider reads which chain for the report, and how its cost is limited."""

from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

import pytest

from tarsy_scoring.config.settings import ProviderSettings
from tarsy_scoring.errors import Paused, RateLimited
from tarsy_scoring.limits.rules import Pause
from tarsy_scoring.missing_tools.report_judge import MoneySpent, ReportBudget, ReportJudge, room_for

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)


class Fleet:
    """Limits that admit every call, except where a test sets a pause or a refusal."""

    def __init__(self) -> None:
        self.paused: list[Pause] = []
        self.refusals: list[Exception] = []
        self.admitted: list[Any] = []
        self.settled: list[float | None] = []
        self.looks = 0

    def token_factor(self, provider: str) -> float:
        return 1.0

    async def refresh(self) -> None:
        self.looks += 1

    async def pauses(self) -> list[Pause]:
        return self.paused

    async def admit(self, call: Any) -> Any:
        if self.refusals:
            raise self.refusals.pop()
        self.admitted.append(call)
        return call

    async def settle(self, permit: Any, result: Any) -> None:
        self.settled.append(result.cost_usd)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def judge_of(fleet: Fleet, budget: ReportBudget, *chains: str | None) -> ReportJudge:
    return ReportJudge(None, fleet, budget, 1, chains or ("k",))  # type: ignore[arg-type]


async def test_calls_that_could_cost_too_much_are_not_made(fleet: Fleet) -> None:
    budget = ReportBudget(1.0)
    judge = judge_of(fleet, budget)

    permit = await judge.admit("default", 100, 0.7)
    with pytest.raises(MoneySpent, match=r"may cost 0\.7000 USD, and 0\.3000 are left of --max-usd"):
        await judge.admit("default", 100, 0.7)
    assert budget.cost_usd is None
    await judge.settle(permit, cost_usd=0.2)

    assert budget.cost_usd == pytest.approx(0.2)
    assert await judge.admit("default", 100, 0.7)


async def test_a_call_of_unknown_cost_stays_charged_at_its_maximum(fleet: Fleet) -> None:
    budget = ReportBudget(1.0)
    judge = judge_of(fleet, budget)

    await judge.settle(await judge.admit("default", 100, 0.7))

    assert budget.cost_usd is None
    with pytest.raises(MoneySpent):
        await judge.admit("default", 100, 0.7)


async def test_a_call_that_the_fleet_refuses_costs_nothing(fleet: Fleet) -> None:
    budget = ReportBudget(1.0)
    fleet.refusals = [RateLimited("full", 1)]

    with pytest.raises(RateLimited):
        await judge_of(fleet, budget).admit("default", 100, 0.7)

    assert (budget.left_usd, budget.cost_usd) == (pytest.approx(1.0), 0.0)


async def test_a_pause_of_any_chain_in_the_question_stops_the_call(fleet: Fleet) -> None:
    judge = judge_of(fleet, ReportBudget(1.0), "a", "b")
    for chain, provider, is_stopped in (
        ("a", None, True),
        ("b", None, True),
        ("b", "default", True),
        (None, None, True),
        ("b", "inside", False),
        ("c", None, False),
    ):
        fleet.paused = [Pause(chain, provider, NOON, "ada", None)]
        refusal = pytest.raises(Paused, match="paused since 2026-03-10 12:00 UTC by ada")
        with refusal if is_stopped else nullcontext():
            await judge.admit("default", 100, 0.1)

    assert (len(fleet.admitted), fleet.looks) == (2, 6)


async def test_a_call_is_charged_to_the_first_chain(fleet: Fleet) -> None:
    await judge_of(fleet, ReportBudget(1.0), "a", "b").admit("default", 100, 0.1)

    assert [call.chain_id for call in fleet.admitted] == ["a"]


def test_room_for_a_question_follows_the_window_and_token_factor() -> None:
    provider = ProviderSettings(
        base_url="http://judge", model="m", context_window_tokens=32_000, max_reply_tokens=4_000
    )

    assert room_for(provider) == 18_500
    assert room_for(provider, 2.0) == 8_500
