"""Money under load: two workers, more scores than a day can pay for, and every dollar accounted for."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from decimal import Decimal

import pytest

from builders import Scoring, open_scoring, session_completed
from charges import MOST_CHARGED, note_every_charge
from fakes import FakeSessions
from infrastructure import wait_until
from tarsy_scoring.config.settings import BudgetSettings, ChainSettings, Config, Prices, ProviderSettings, Settings
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.judge.llm import JudgeClient
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.queue.admission import Policy
from tarsy_scoring.scoring.attempt import Scorer
from tarsy_scoring.scoring.worker import Worker
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.timeline.model import Event, Execution, Stage, Timeline
from tarsy_scoring_lab.scripted_judge import MODEL, ScriptedJudge

SCORES = 1_000
WORKERS, SLOTS = 2, 100  # slots of each
CHAIN = "kubernetes"
REGISTRY = load_criteria()
HASHES = {c.name: c.criteria_hash for c in REGISTRY}
PRICES = Prices(input=1, cached_input=0.1, output=10)
# A score costs 0.006 USD in two calls, of which each reserves more than 0.014: a day pays for about a third of the
# scores, and what is left of it in the end for more than a reply, so that every score is refused by itself.
BUDGET = Decimal("2.4")
DAY_S = 60.0
EXACTLY = Decimal("0.000001")

# What the judge is paid is what it says that it read and wrote, times its prices.
LOOK = f"""
SELECT * FROM (
  SELECT count(*) FILTER (WHERE status = 'completed') AS completed,
         count(*) FILTER (WHERE status = 'in_progress') AS in_progress,
         count(*) FILTER (WHERE status = 'pending' AND waiting_reason = 'budget'
                            AND next_attempt_at > now() + interval '1 min') AS put_off,
         count(*) FILTER (WHERE status NOT IN ('completed', 'in_progress', 'pending')) AS failed,
         sum(attempts_burned) AS burned
  FROM session_scores
) scores, (
  SELECT coalesce(sum(charged_usd), 0) AS charged, coalesce(sum(reserved_usd), 0) AS reserved
  FROM budget_days WHERE scope = 'all'
) days, (
  SELECT count(*) AS turns,
         coalesce(sum((input_tokens - cached_input_tokens) * {PRICES.input}
                      + cached_input_tokens * {PRICES.cached_input}
                      + output_tokens * {PRICES.output}) / 1e6, 0) AS paid
  FROM judge_turns
) turns, (
  SELECT coalesce(max(usd), 0) AS most_charged FROM ({MOST_CHARGED}) noted
) noted
"""


@dataclass(frozen=True)
class Look:
    """Scores and money at one instant; money is that of all days together, `most_charged` the most of any day ever."""

    completed: int
    in_progress: int
    put_off: int
    failed: int
    burned: int
    most_charged: Decimal
    charged: Decimal
    reserved: Decimal
    turns: int
    paid: Decimal

    @property
    def is_quiet(self) -> bool:
        """Everything has ended, or waits for the next day's budget."""
        return self.in_progress == 0 and self.completed + self.put_off == SCORES


def settings_of(judge: ScriptedJudge) -> Settings:
    main = ProviderSettings(
        base_url=judge.base_url,
        api_key_env=None,
        model=MODEL,
        max_reply_tokens=600,
        prices_usd_per_million_tokens=PRICES,
    )
    every = ChainSettings(providers=("main",))
    budget = BudgetSettings(daily_usd=float(BUDGET))
    return Settings(config=Config(providers={"main": main}, defaults=every, budget=budget), slots=SLOTS)


def all_sessions() -> FakeSessions:
    """In memory, each the same small investigation."""
    events = (
        Event("e1", 1, "llm_thinking", "completed", "The pod restarts; I look at its logs."),
        Event("e2", 2, "llm_response", "completed", "It runs out of memory."),
    )
    execution = Execution("x1", "investigator", 1, "completed", events)
    stage = Stage("s1", "diagnosis", 1, "investigation", "completed", (execution,), expected_agent_count=1)
    names = [f"session-{n}" for n in range(SCORES)]
    told = ("completed", CHAIN, "Restarts", "a pod restarts", "out of memory", None, (stage,))
    return FakeSessions(**{name: Timeline(name, *told) for name in names})


@contextlib.asynccontextmanager
async def running_worker(url: str, settings: Settings) -> AsyncIterator[None]:
    """A worker that shares nothing with others but the database, as in a process of its own."""
    async with open_scoring(url, Policy(settings, HASHES)) as scoring:
        client = JudgeClient("main", settings.config.providers["main"], None, slots=SLOTS)
        limits, metrics, stopping = Limits(scoring.database, settings), Metrics(), asyncio.Event()
        scorer = Scorer(
            settings, scoring.leases, scoring.store, all_sessions(), REGISTRY, {"main": client}, metrics, limits
        )
        worker = Worker(settings, scoring.leases, scorer, metrics, limits)
        running = asyncio.create_task(worker.run(stopping))
        try:
            yield
        finally:
            stopping.set()
            await running
            await client.close()


@dataclass(frozen=True)
class Ledger:
    """All scores and all money, seen past the workers; and days that end when there is nothing more to do."""

    seen: Scoring

    async def look(self) -> Look:
        """What holds at every instant is asserted at every look."""
        [row] = await self.seen.rows(LOOK)
        now = Look(**row)
        assert now.most_charged <= BUDGET
        assert now.paid <= now.charged - now.reserved + EXACTLY  # a call is settled before its turn is stored
        assert (now.failed, now.burned) == (0, 0)
        return now

    async def end_of_day(self) -> Look:
        """The first look at which nothing more happens today, however often what is put off for a moment tries."""

        async def quiet() -> Look | None:
            now = await self.look()
            if now.in_progress == 0:
                await self.seen.rows(
                    "UPDATE session_scores SET next_attempt_at = now() WHERE status = 'pending' "
                    "AND next_attempt_at BETWEEN now() AND now() + interval '1 min'"
                )
            return now if now.is_quiet else None

        found: Look = await wait_until(quiet, DAY_S, "every score to be completed or put off to the next day")
        return found

    async def dearest_call(self) -> Decimal:
        """The most that was reserved for any call so far."""
        most: Decimal = await self.seen.value("SELECT max(reserved_usd) FROM budget_charges")
        return most

    async def begin_day(self, number: int) -> None:
        """What is booked today was booked `number` days ago, and what waits is due."""
        for table in ("budget_days", "budget_charges"):
            await self.seen.rows(
                f"UPDATE {table} SET day = day - $1::int WHERE day = (now() AT TIME ZONE 'UTC')::date", number
            )
        await self.seen.make_due()


@pytest.mark.slow
async def test_more_scores_than_a_day_can_pay_for(database_url: str, judge: ScriptedJudge) -> None:
    """
    1,000 scores at two workers, and a judge that can be paid for a third of them a day: no instant exceeds the
    budget, nothing that fits is kept waiting, no turn is paid for twice, nobody fails or burns an attempt, and
    after three days all are completed. Within a day payments only add up, so its end is when they are most.
    """
    settings = settings_of(judge)
    async with contextlib.AsyncExitStack() as stack:
        ledger = Ledger(await stack.enter_async_context(open_scoring(database_url, Policy(settings, HASHES))))
        await ledger.seen.accept(*(session_completed(f"session-{n}", chain_id=CHAIN) for n in range(SCORES)))
        await note_every_charge(database_url)
        for _ in range(WORKERS):
            await stack.enter_async_context(running_worker(database_url, settings))

        days = [await ledger.end_of_day()]
        while days[-1].completed < SCORES:
            assert BUDGET * len(days) - days[-1].paid < len(days) * await ledger.dearest_call()
            await ledger.begin_day(len(days))
            days.append(await ledger.end_of_day())

    assert 0 < days[0].completed < SCORES / 2
    assert len(days) == 3
    for ended in days:
        assert abs(ended.charged - ended.paid) < EXACTLY
        assert ended.reserved == 0
    assert days[-1].turns == judge.calls == 2 * SCORES
