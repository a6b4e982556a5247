"""
Decide which analyses of a report go to which model, within limits and a budget.

The first usable provider of a chain reads its analyses, and the calls count for that chain, so its pauses and
budget apply. A chain without a judge is not read. Needs of several chains are compared if one provider read
them all.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from tarsy_scoring.analytics.analytics import Selection
from tarsy_scoring.config.settings import ProviderSettings, Settings
from tarsy_scoring.errors import Paused, WaitFor
from tarsy_scoring.judge.ask.client import JudgeClient
from tarsy_scoring.judge.clock import AttemptClock
from tarsy_scoring.judge.verdict import Question, Turn
from tarsy_scoring.limits.fleet import PAUSE_DUE_S, Limits
from tarsy_scoring.limits.rules import Call, Permit, Result
from tarsy_scoring.missing_tools.needs import (
    LONGEST_NOTE,
    Findings,
    LeftOut,
    Note,
    Reading,
    count_notes,
    find_needs,
    read_notes,
)
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.timeline.clean.masking import masking_of
from tarsy_scoring.timeline.render.context import estimate_tokens

OVERHEAD_TOKENS = 1500  # the instructions, the schema and the fence
NO_JUDGE = "its judge is switched off (`judge.enabled`), so no model may be asked"
BEYOND = "beyond --max-scores; the scores that lost least are left out"


class MoneySpent(WaitFor):
    """The next call could cost more than the remaining budget of the report."""

    waiting_for = "budget"


@dataclass(slots=True)
class ReportBudget:
    """The budget of all calls of a report, which are made one after the other."""

    left_usd: float
    spent_usd: float = 0.0
    calls_of_unknown_cost: int = 0  # and calls in progress

    @property
    def cost_usd(self) -> float | None:
        """Cost of the calls so far; None: unknown."""
        return None if self.calls_of_unknown_cost else self.spent_usd


@dataclass(frozen=True, slots=True)
class ReportJudge:
    """
    Asks a model about some chains, within the fleet's limits and the report's budget.

    Args:
        chains: Chains whose text the questions contain. A pause of any of them applies; the first one's
            budget is charged.
        deadline_s: Deadline of one question.
        report_id: Takes the place of a score id in the ledger of calls.
    """

    client: JudgeClient
    limits: Limits
    budget: ReportBudget
    deadline_s: float
    chains: Sequence[str | None]
    report_id: UUID = field(default_factory=uuid4)

    async def __call__(self, question: Question) -> Turn:
        """See `Ask`. Raises: MoneySpent: The call could cost more than the rest of the budget."""
        return await self.client.ask(
            question,
            clock=AttemptClock(self.deadline_s),
            permits=self,
            token_factor=self.limits.token_factor(self.client.provider),
        )

    async def admit(self, provider: str, tokens: int, most_usd: float | None) -> tuple[Permit, float]:
        """
        See `ask.client.Permits`.

        Raises:
            MoneySpent: The call could cost more than the rest of the budget.
            WaitFor: A pause or a limit of the fleet forbids the call now.
            DatabaseAway: Pauses are unknown.
        """
        assert most_usd is not None, "providers without prices are not asked"
        await self.limits.refresh()  # pauses and circuits may change during a report, which takes long
        for pause in await self.limits.pauses():
            if any(pause.covers(chain_id, provider) for chain_id in self.chains):
                raise Paused(f"{pause}; `tarsy-scoring resume` lifts it", PAUSE_DUE_S)
        left_usd = max(0.0, self.budget.left_usd)
        if most_usd > left_usd:
            raise MoneySpent(
                f"the next call may cost {most_usd:.4f} USD, and {left_usd:.4f} are left of --max-usd", 1
            )
        permit = await self.limits.admit(Call(provider, self.chains[0], self.report_id, tokens, most_usd))
        # Until it is settled, and if its cost stays unknown, a call is charged at its maximum.
        self.budget.left_usd -= most_usd
        self.budget.calls_of_unknown_cost += 1
        return permit, most_usd

    async def settle(self, permit: tuple[Permit, float], **result: Any) -> None:
        """See `ask.client.Permits`."""
        of_fleet, most_usd = permit
        settled = Result(**result)
        if settled.cost_usd is not None:
            self.budget.left_usd += most_usd - settled.cost_usd
            self.budget.spent_usd += settled.cost_usd
            self.budget.calls_of_unknown_cost -= 1
        await self.limits.settle(of_fleet, settled)


def room_for(provider: ProviderSettings, token_factor: float = 1.0) -> int:
    """
    Compute the room for text in a question, in estimated tokens: possibly 0.

    The context window minus the instructions, the answer, its one repetition with twice the limit, and a
    reminder that repeats it.
    """
    return max(
        0,
        int((provider.context_window_tokens - 3 * provider.max_reply_tokens) / token_factor)
        - OVERHEAD_TOKENS,
    )


async def read_analyses(
    database: Database,
    limits: Limits,
    settings: Settings,
    clients: Mapping[str, JudgeClient],
    selection: Selection,
    *,
    max_usd: float,
    most_notes: int,
) -> Reading:
    """
    Find the needs in the judges' analyses, as far as settings, limits and budget allow.

    Unread analyses are listed by chain with the reason.

    Args:
        clients: By provider.
        max_usd: Budget of all calls together.
        most_notes: Maximum number of analyses; those of the scores that lost most come first.

    Raises:
        DatabaseAway: Before the first question; later failures only end the reading of a chain.
    """
    await limits.refresh()
    counts = await count_notes(database, selection)
    judged = {chain_id for chain_id in counts if settings.chain(chain_id).judge.enabled}
    notes = await read_notes(database, selection, judged, most_notes)
    taken = Counter(note.chain_id for note in notes)
    left_out = [LeftOut(c, counts[c], NO_JUDGE) for c in counts if c not in judged]
    left_out += [
        LeftOut(c, counts[c] - taken[c], BEYOND) for c in counts if c in judged and counts[c] > taken[c]
    ]
    rooms = {name: room_for(client.settings, limits.token_factor(name)) for name, client in clients.items()}
    unusable = {name: why for name, client in clients.items() if (why := _why_unusable(client, rooms[name]))}
    by_provider: defaultdict[str, list[Note]] = defaultdict(list)
    for note in notes:
        providers = settings.chain(note.chain_id).providers
        by_provider[next((p for p in providers if p not in unusable), providers[0])].append(note)
    budget = ReportBudget(max_usd)
    findings: list[Findings] = []
    for provider, of_provider in by_provider.items():
        if why := unusable.get(provider):
            left_out += [
                LeftOut(c, n, why) for c, n in Counter(note.chain_id for note in of_provider).items()
            ]
            continue
        found = await find_needs(
            of_provider,
            partial(ReportJudge, clients[provider], limits, budget, settings.attempt_timeout_s),
            rooms[provider],
            provider=provider,
            max_reminders=min(settings.chain(note.chain_id).max_reminders for note in of_provider),
            masking=masking_of(settings.config.masking.extra_patterns),
        )
        left_out += found.left_out
        if found.notes_read:
            findings.append(found)
    return Reading(findings, left_out, budget.cost_usd)


def _why_unusable(client: JudgeClient, budget_tokens: int) -> str | None:
    """Why this provider cannot be used as configured; None: it can be used."""
    if not client.prices.are_known:
        return (
            f"the prices of provider {client.provider!r} are unknown, so the cost of the report cannot be limited; "
            f"set providers.{client.provider}.prices_usd_per_million_tokens"
        )
    if budget_tokens < estimate_tokens("x" * LONGEST_NOTE):
        return (
            f"the window of provider {client.provider!r} is too small for a report: lower max_reply_tokens, or use "
            "a model with a larger one"
        )
    return None
