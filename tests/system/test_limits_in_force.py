"""Pauses, circuits and budgets in worker processes: what must wait is not called, burns nothing, and goes on."""

import json
from typing import Any

import pytest

from processes import Service, assert_whole, wait_until
from tarsy_scoring_lab.scripted_judge import Fault

PRICES = {"input": 1.0, "output": 1.0}


def config_of(service: Service, *, budget_usd: float | None = None, **provider: Any) -> dict[str, str]:
    """The environment of a worker with providers `main` and `spare`, both at the scripted judge."""
    common = {"base_url": service.judge.base_url, "api_key_env": None, "context_window_tokens": 20_000}
    common |= {"max_reply_tokens": 1_000, "prices_usd_per_million_tokens": PRICES} | provider
    config = {
        "providers": {"main": common | {"model": "main-model"}, "spare": common | {"model": "spare-model"}},
        "defaults": {"providers": ["main"]},
        "chains": {"both": {"providers": ["main", "spare"]}},
        "budget": {"daily_usd": budget_usd},
    }
    file = service.folder / "limits.yaml"
    file.write_text(json.dumps(config), "utf-8")  # JSON is YAML
    return {"SCORING_CONFIG": str(file)}


async def nothing_is(service: Service, condition: str) -> None:
    """Wait until no score fulfils the SQL condition."""

    async def none() -> bool:
        return not await service.count(condition)

    await wait_until(none, 60, f"no score is {condition}")


async def all_wait(service: Service, count: int) -> None:
    """Wait until this many scores are stored, and none of them is being judged."""
    await service.scores_reach(count, "true")
    await nothing_is(service, "status <> 'pending'")


@pytest.mark.slow
async def test_a_paused_fleet_stores_requests_and_judges_nothing(service: Service) -> None:
    """Workers know within seconds, and go on within seconds of `resume`."""
    env = config_of(service)
    assert (await service.run("pause", "--reason", "maintenance", **env)).status == 0
    service.worker(**env)
    events = await service.announce(*service.add_sessions(5))
    await all_wait(service, 5)
    assert service.judge.calls == 0
    assert (await service.run("resume", **env)).status == 0
    await service.all_end(5)
    await assert_whole(service, events)
    assert await service.count("attempts_burned > 0") == 0


@pytest.mark.slow
async def test_an_open_circuit_stops_calls_and_closes_after_one_probe(service: Service) -> None:
    """Five failures in a row, then silence; one call finds out that the provider is well, and the rest follows."""
    env = config_of(service)
    service.judge.script(Fault(kind="status", status=503, headers={"retry-after-ms": "10"}))
    worker = service.worker(**env)
    events = await service.announce(*service.add_sessions(20))
    await worker.says("circuit.opened")
    await all_wait(service, 20)
    calls = service.judge.calls
    service.judge.clear()
    await service.let_retries_be_due()
    await nothing_is(service, "status = 'in_progress'")
    assert service.judge.calls == calls, "an open circuit lets no call through"
    await service.rows("UPDATE provider_states SET open_until = now() WHERE open_until IS NOT NULL")
    await worker.says("circuit.closed")
    await wait_until(lambda: service.judge.calls > calls, 60, "the probe was made")
    await service.let_retries_be_due()
    await service.all_end(20)
    await assert_whole(service, events)


@pytest.mark.slow
async def test_the_next_provider_goes_on_where_the_first_stopped(service: Service) -> None:
    """The analysis of the first provider is paid for once; only what it would not answer is asked of the second."""
    env = config_of(service)
    service.judge.script(Fault(kind="status", status=401, turn="missing_tools", match="main-model"))
    service.worker(**env)
    service.add_session("session-1")
    events = await service.announce("session-1", chain_id="both")
    await service.score_becomes("session-1", "completed")
    await assert_whole(service, events)
    turns = await service.rows("SELECT kind, model_requested FROM judge_turns ORDER BY ordinal")
    assert [tuple(t) for t in turns] == [("analysis", "main-model"), ("missing_tools", "spare-model")]
    assert await service.count("flags @> '[\"missing_tools_unavailable\"]'") == 0


@pytest.mark.slow
async def test_a_budget_is_never_exceeded_and_what_waits_drains_the_next_day(service: Service) -> None:
    """12 scores against money for a few: the rest waits without an attempt burned, and is scored when there is more."""
    env = config_of(service, budget_usd=0.03)
    service.worker(SCORING_SLOTS="40", **env)
    events = await service.announce(*service.add_sessions(12))
    await service.scores_reach(12, "status = 'completed' OR waiting_reason = 'budget'")
    charged = await service.value("SELECT charged_usd FROM budget_days WHERE scope = 'all'")
    assert charged <= 0.03
    spent = await service.value("SELECT coalesce(sum(cost_usd), 0) FROM judge_turns")
    assert 0 < spent <= 0.03
    waiting = await service.count("waiting_reason = 'budget'")
    assert 0 < waiting < 12
    assert await service.count("attempts_burned > 0") == 0

    for _day in range(30):
        await service.rows("DELETE FROM budget_days")  # the books of a new day are empty
        await service.let_retries_be_due()
        await nothing_is(service, "status = 'in_progress' OR (status = 'pending' AND next_attempt_at <= now())")
        if await service.count("status = 'completed'") == 12:
            break
    await assert_whole(service, events)
