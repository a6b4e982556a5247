"""
Decide which analyses of a report go to which model, within limits and a budget.

Only the first provider of a chain reads its analyses, and the calls count for that chain, so its pauses and
budget apply. A chain without a judge is not read. Needs of several chains are compared if one provider read
them all.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from tarsy_scoring.config.settings import ProviderSettings, Settings
from tarsy_scoring.errors import ConfigurationError, Paused, WaitFor
from tarsy_scoring.judge.llm import JudgeClient
from tarsy_scoring.judge.verdict import Message, ReplyFormat, Turn, TurnKind
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
from tarsy_scoring.records.analytics import Selection
from tarsy_scoring.timeline.context import estimate_tokens

OVERHEAD_TOKENS = 1500  # the instructions, the schema and the fence
NO_JUDGE = "its judge is switched off (`judge.enabled`), so no model may be asked"
BEYOND = "beyond --max-scores; the scores that lost least are left out"


class MoneySpent(WaitFor):
    """The next call could cost more than the remaining budget of the report."""

    waiting_for = "budget"


@dataclass(slots=True)
class ReportBudget:
    """The budget of all calls of a report. The amount reserved for a call counts until the call is settled."""

    left_usd: float
    spent_usd: float = 0.0
    calls_of_unknown_cost: int = 0

    @property
    def cost_usd(self) -> float | None:
        """Cost of the calls so far; None: unknown."""
        return None if self.calls_of_unknown_cost else self.spent_usd

    def reserve(self, most_usd: float) -> None:
        """Reserve the maximum cost of a call. Raises: MoneySpent: Less is left."""
        if most_usd > self.left_usd:
            raise MoneySpent(
                f"the next call may cost {most_usd:.4f} USD, and {max(0.0, self.left_usd):.4f} are left of --max-usd",
                1,
            )
        self.left_usd -= most_usd
        self.calls_of_unknown_cost += 1

    def settle(self, most_usd: float, cost_usd: float | None) -> None:
        """Replace the reservation by the cost; an unknown cost leaves it reserved."""
        if cost_usd is not None:
            self.left_usd += most_usd - cost_usd
            self.spent_usd += cost_usd
            self.calls_of_unknown_cost -= 1

    def give_back(self, most_usd: float) -> None:
        """Cancel the reservation of a call that was not made."""
        self.settle(most_usd, 0.0)


class ReportJudge:
    """
    Asks a model about some chains, within the fleet's limits and the report's budget.

    Args:
        chains: Chains whose text the questions contain. A pause of any of them applies; the first one's
            budget is charged.
        deadline_s: Deadline of one question.
    """

    def __init__(
        self, client: JudgeClient, limits: Limits, chains: Sequence[str | None], budget: ReportBudget, deadline_s: float
    ) -> None:
        self._client = client
        self._limits = limits
        self._chains = chains
        self._budget = budget
        self._deadline_s = deadline_s
        self._report_id = uuid4()  # takes the place of a score id in the ledger of calls

    async def __call__(
        self,
        kind: TurnKind,
        messages: Sequence[Message],
        *,
        reply_limit_factor: int = 1,
        reply_format: ReplyFormat | None = None,
    ) -> Turn:
        """See `Ask`. Raises: MoneySpent: The budget is used up."""
        return await self._client.ask(
            messages,
            kind,
            deadline_s=self._deadline_s,
            reply_limit_factor=reply_limit_factor,
            reply_format=reply_format,
            gate=self,
            token_factor=self._limits.token_factor(self._client.provider),
        )

    async def admit(self, provider: str, tokens: int, most_usd: float | None) -> tuple[Permit, float]:
        """
        See `llm.Gate`.

        Raises:
            DatabaseAway: Pauses are unknown.
        """
        if most_usd is None:
            raise ConfigurationError(_no_prices(provider))
        await self._limits.refresh()  # settings may change during a report, which takes as long as many judgements
        for pause in await self._limits.pauses():
            if any(pause.covers(chain_id, provider) for chain_id in self._chains):
                raise Paused(f"{pause}; `tarsy-scoring resume` lifts it", PAUSE_DUE_S)
        self._budget.reserve(most_usd)
        try:
            permit = await self._limits.admit(Call(provider, self._chains[0], self._report_id, tokens, most_usd))
        except WaitFor:
            self._budget.give_back(most_usd)
            raise
        return permit, most_usd

    async def settle(self, permit: tuple[Permit, float], **result: Any) -> None:
        """See `llm.Gate`."""
        of_fleet, most_usd = permit
        settled = Result(**result)
        self._budget.settle(most_usd, settled.cost_usd)
        await self._limits.settle(of_fleet, settled)


def room_for(provider: ProviderSettings, token_factor: float = 1.0) -> int:
    """
    Room for text in a question, in estimated tokens.

    The context window minus the instructions, the answer, its one repetition with twice the limit, and a
    reminder that repeats it.
    """
    return max(
        0, int((provider.context_window_tokens - 3 * provider.max_reply_tokens) / token_factor) - OVERHEAD_TOKENS
    )


def by_provider(notes: Sequence[Note], settings: Settings) -> dict[str, list[Note]]:
    """Group notes by the first provider of their chain."""
    found: defaultdict[str, list[Note]] = defaultdict(list)
    for note in notes:
        found[settings.chain(note.chain_id).providers[0]].append(note)
    return dict(found)


@dataclass(frozen=True, slots=True)
class Analyst:
    """
    Reads the judges' analyses of missing tools, as far as settings, limits and budget allow.

    Args:
        clients: By provider.
        max_usd: Budget of all calls of one reading.
        most_notes: Maximum number of analyses; those of the scores that lost most come first.
    """

    database: Database
    limits: Limits
    settings: Settings
    clients: Mapping[str, JudgeClient]
    max_usd: float
    most_notes: int

    async def read(self, selection: Selection) -> Reading:
        """
        Find the needs in the analyses. Unread analyses are listed by chain with the reason.

        Raises:
            DatabaseAway: Before the first question; later failures only end the reading of a chain.
        """
        await self.limits.refresh()
        counts = await count_notes(self.database, selection)
        judged = {chain_id for chain_id in counts if self.settings.chain(chain_id).judge.enabled}
        notes = await read_notes(self.database, selection, judged, self.most_notes)
        taken = Counter(note.chain_id for note in notes)
        left_out = [LeftOut(c, counts[c], NO_JUDGE) for c in counts if c not in judged]
        left_out += [LeftOut(c, counts[c] - taken[c], BEYOND) for c in counts if c in judged and counts[c] > taken[c]]
        budget = ReportBudget(self.max_usd)
        findings = [
            await self._find(provider, of, budget) for provider, of in by_provider(notes, self.settings).items()
        ]
        for found in findings:
            left_out += found.left_out
        return Reading([found for found in findings if found.notes_read], left_out, budget.cost_usd)

    async def _find(self, provider: str, notes: Sequence[Note], budget: ReportBudget) -> Findings:
        client = self.clients[provider]
        budget_tokens = room_for(client.settings, self.limits.token_factor(provider))
        if why := _hindrance(client, budget_tokens):
            left_out = [LeftOut(chain_id, n, why) for chain_id, n in Counter(n.chain_id for n in notes).items()]
            return Findings(provider, [], [], 0, 0, 0, True, None, left_out)

        def ask_for(chains: Sequence[str | None]) -> ReportJudge:
            return ReportJudge(client, self.limits, chains, budget, self.settings.attempt_timeout_s)

        max_reminders = min(self.settings.chain(note.chain_id).max_reminders for note in notes)
        return await find_needs(notes, ask_for, budget_tokens, provider=provider, max_reminders=max_reminders)


def _hindrance(client: JudgeClient, budget_tokens: int) -> str | None:
    """Why this provider cannot be used as configured; None: it can."""
    if not client.prices.are_known:
        return _no_prices(client.provider)
    if budget_tokens < estimate_tokens("x" * LONGEST_NOTE):
        return (
            f"the window of provider {client.provider!r} is too small for a report: lower max_reply_tokens, or use a "
            "model with a larger one"
        )
    return None


def _no_prices(provider: str) -> str:
    return (
        f"the prices of provider {provider!r} are unknown, so the cost of the report cannot be limited; set "
        f"providers.{provider}.prices_usd_per_million_tokens"
    )
