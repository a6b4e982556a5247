"""Which model reads which chain, and what that may cost at most."""

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from tarsy_scoring.config.settings import ChainSettings, Config, ProviderSettings, Settings
from tarsy_scoring.errors import ConfigurationError, Paused, RateLimited
from tarsy_scoring.limits.rules import Pause
from tarsy_scoring.missing_tools.needs import Note
from tarsy_scoring.missing_tools.report_judge import MoneySpent, ReportBudget, ReportJudge, by_provider, room_for

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)


class Fleet:
    """Limits that let everything through but what is paused or refused."""

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


def judge_of(fleet: Fleet, purse: ReportBudget, *chains: str | None) -> ReportJudge:
    return ReportJudge(None, fleet, chains or ("k",), purse, 1)  # type: ignore[arg-type]


def test_each_chain_is_read_by_its_own_provider() -> None:
    chains = {"inner": ChainSettings(providers=("inside", "open")), "k": ChainSettings(providers=("open", "inside"))}
    config = Config(
        providers={"open": ProviderSettings(), "inside": ProviderSettings()},
        defaults=ChainSettings(providers=("open",)),
        chains=chains,
    )
    notes = [Note(uuid.uuid4(), "text", chain) for chain in ("inner", "k", None, "new", "inner")]

    found = by_provider(notes, Settings(config=config))

    assert {name: [note.chain_id for note in of] for name, of in found.items()} == {
        "inside": ["inner", "inner"],
        "open": ["k", None, "new"],
    }


async def test_calls_that_could_cost_too_much_are_not_made(fleet: Fleet) -> None:
    purse = ReportBudget(1.0)
    judge = judge_of(fleet, purse)

    permit = await judge.admit("default", 100, 0.7)
    with pytest.raises(MoneySpent, match=r"may cost 0\.7000 USD, and 0\.3000 are left of --max-usd"):
        await judge.admit("default", 100, 0.7)
    assert purse.cost_usd is None
    await judge.settle(permit, cost_usd=0.2)

    assert purse.cost_usd == pytest.approx(0.2)
    assert await judge.admit("default", 100, 0.7)


async def test_one_purse_for_all_models(fleet: Fleet) -> None:
    purse = ReportBudget(1.0)

    await judge_of(fleet, purse, "a").admit("default", 100, 0.7)

    with pytest.raises(MoneySpent):
        await judge_of(fleet, purse, "b").admit("inside", 100, 0.7)


async def test_a_call_of_unknown_cost_stays_charged_at_its_maximum(fleet: Fleet) -> None:
    purse = ReportBudget(1.0)
    judge = judge_of(fleet, purse)

    await judge.settle(await judge.admit("default", 100, 0.7))

    assert purse.cost_usd is None
    with pytest.raises(MoneySpent):
        await judge.admit("default", 100, 0.7)


async def test_what_the_fleet_refuses_costs_nothing(fleet: Fleet) -> None:
    purse = ReportBudget(1.0)
    fleet.refusals = [RateLimited("full", 1)]

    with pytest.raises(RateLimited):
        await judge_of(fleet, purse).admit("default", 100, 0.7)

    assert (purse.left_usd, purse.cost_usd) == (pytest.approx(1.0), 0.0)


@pytest.mark.parametrize(
    ("chain", "provider", "is_stopped"),
    [
        pytest.param("a", None, True, id="first-chain"),
        pytest.param("b", None, True, id="another-chain-in-the-question"),
        pytest.param("b", "default", True, id="this-provider-for-it"),
        pytest.param(None, None, True, id="everything"),
        pytest.param("b", "inside", False, id="another-provider-for-it"),
        pytest.param("c", None, False, id="a-chain-that-is-not-in-it"),
    ],
)
async def test_a_pause_of_any_chain_in_the_question_holds(
    fleet: Fleet, chain: str | None, provider: str | None, is_stopped: bool
) -> None:
    judge = judge_of(fleet, ReportBudget(1.0), "a", "b")
    await judge.admit("default", 100, 0.1)
    fleet.paused = [Pause(chain, provider, NOON, "ada", None)]

    if is_stopped:
        with pytest.raises(Paused, match="paused since 2026-03-10 12:00 UTC by ada"):
            await judge.admit("default", 100, 0.1)
    else:
        await judge.admit("default", 100, 0.1)

    assert len(fleet.admitted) == 2 - is_stopped
    assert fleet.looks == 2


async def test_the_first_chain_pays(fleet: Fleet) -> None:
    await judge_of(fleet, ReportBudget(1.0), "a", "b").admit("default", 100, 0.1)

    assert [call.chain_id for call in fleet.admitted] == ["a"]


async def test_without_prices_there_is_no_report_by_a_model(fleet: Fleet) -> None:
    with pytest.raises(ConfigurationError, match="prices_usd_per_million_tokens"):
        await judge_of(fleet, ReportBudget(1.0)).admit("default", 100, None)


def test_what_a_question_may_hold() -> None:
    provider = ProviderSettings(
        base_url="http://judge", model="m", context_window_tokens=32_000, max_reply_tokens=4_000
    )

    assert room_for(provider) == 18_500
    assert room_for(provider, 2.0) == 8_500
