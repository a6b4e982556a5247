"""
Which analyses of a report go to which model, and what that may cost.

A chain's analyses are read by its first provider alone and its calls count for that chain, so that its pauses and its
budget hold; a chain without a judge is not read. Needs of several chains are compared where one provider read them all.
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
BEYOND = "the scores that lost least of all that were found, beyond --max-scores"


class MoneySpent(WaitFor):
    """The next call could cost more than is left of what the report may cost."""

    waiting_for = "budget"


@dataclass(slots=True)
class Purse:
    """What all calls of a report may cost together. What is reserved for a call counts until it is settled."""

    left_usd: float
    spent_usd: float = 0.0
    calls_of_unknown_cost: int = 0

    @property
    def cost_usd(self) -> float | None:
        """What the calls have cost; None: not known."""
        return None if self.calls_of_unknown_cost else self.spent_usd

    def reserve(self, most_usd: float) -> None:
        """Raises: MoneySpent: There is less left."""
        if most_usd > self.left_usd:
            raise MoneySpent(
                f"the next call may cost {most_usd:.4f} USD, and {max(0.0, self.left_usd):.4f} are left of --max-usd",
                1,
            )
        self.left_usd -= most_usd
        self.calls_of_unknown_cost += 1

    def settle(self, most_usd: float, cost_usd: float | None) -> None:
        """Where the cost is not known, all that was reserved stays reserved."""
        if cost_usd is not None:
            self.left_usd += most_usd - cost_usd
            self.spent_usd += cost_usd
            self.calls_of_unknown_cost -= 1

    def give_back(self, most_usd: float) -> None:
        """The call was not made."""
        self.settle(most_usd, 0.0)


class ReportJudge:
    """
    A model that is asked about some chains: within the fleet's limits, and never beyond the purse.

    Args:
        chains: Whose text the questions hold. A pause of any of them holds, and the first one's budget pays.
        deadline_s: Of one question.
    """

    def __init__(
        self, client: JudgeClient, limits: Limits, chains: Sequence[str | None], purse: Purse, deadline_s: float
    ) -> None:
        self._client = client
        self._limits = limits
        self._chains = chains
        self._purse = purse
        self._deadline_s = deadline_s
        self._report_id = uuid4()  # in place of a score's in the books

    async def __call__(
        self,
        kind: TurnKind,
        messages: Sequence[Message],
        *,
        reply_limit_factor: int = 1,
        reply_format: ReplyFormat | None = None,
    ) -> Turn:
        """See `Ask`. Raises: MoneySpent: Not within the purse."""
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
            DatabaseAway: Nobody knows what is paused.
        """
        if most_usd is None:
            raise ConfigurationError(_no_prices(provider))
        await self._limits.refresh()  # a report takes as long as many judgements
        for pause in await self._limits.pauses():
            if any(pause.covers(chain_id, provider) for chain_id in self._chains):
                raise Paused(f"{pause}; `tarsy-scoring resume` lifts it", PAUSE_DUE_S)
        self._purse.reserve(most_usd)
        try:
            permit = await self._limits.admit(Call(provider, self._chains[0], self._report_id, tokens, most_usd))
        except WaitFor:
            self._purse.give_back(most_usd)
            raise
        return permit, most_usd

    async def settle(self, permit: tuple[Permit, float], **result: Any) -> None:
        """See `llm.Gate`."""
        of_fleet, most_usd = permit
        told = Result(**result)
        self._purse.settle(most_usd, told.cost_usd)
        await self._limits.settle(of_fleet, told)


def room_for(provider: ProviderSettings, token_factor: float = 1.0) -> int:
    """
    Tokens, as we estimate them, that a question may hold beside its instructions.

    The window less the answer, its one repetition with twice the limit, and what a reminder repeats of it.
    """
    return max(
        0, int((provider.context_window_tokens - 3 * provider.max_reply_tokens) / token_factor) - OVERHEAD_TOKENS
    )


def by_provider(notes: Sequence[Note], settings: Settings) -> dict[str, list[Note]]:
    """Notes by the first provider of their chain, each of which may see those of its chains."""
    found: defaultdict[str, list[Note]] = defaultdict(list)
    for note in notes:
        found[settings.chain(note.chain_id).providers[0]].append(note)
    return dict(found)


@dataclass(frozen=True, slots=True)
class Analyst:
    """
    Reads what judges wrote about missing tools, as far as settings, limits and money allow.

    Args:
        clients: By provider.
        max_usd: Of all calls of one reading together.
        most_notes: Those of the scores that lost most come first.
    """

    database: Database
    limits: Limits
    settings: Settings
    clients: Mapping[str, JudgeClient]
    max_usd: float
    most_notes: int

    async def read(self, selection: Selection) -> Reading:
        """
        What they ask for. What was not read is told chain by chain, with why.

        Raises:
            DatabaseAway: See `Database.once`; later ones end the reading of a chain.
        """
        await self.limits.refresh()
        counts = await count_notes(self.database, selection)
        judged = {chain_id for chain_id in counts if self.settings.chain(chain_id).judge.enabled}
        notes = await read_notes(self.database, selection, judged, self.most_notes)
        taken = Counter(note.chain_id for note in notes)
        left_out = [LeftOut(c, counts[c], NO_JUDGE) for c in counts if c not in judged]
        left_out += [LeftOut(c, counts[c] - taken[c], BEYOND) for c in counts if c in judged and counts[c] > taken[c]]
        purse = Purse(self.max_usd)
        findings = [await self._find(provider, of, purse) for provider, of in by_provider(notes, self.settings).items()]
        for found in findings:
            left_out += found.left_out
        return Reading([found for found in findings if found.notes_read], left_out, purse.cost_usd)

    async def _find(self, provider: str, notes: Sequence[Note], purse: Purse) -> Findings:
        client = self.clients[provider]
        budget_tokens = room_for(client.settings, self.limits.token_factor(provider))
        if why := _hindrance(client, budget_tokens):
            left_out = [LeftOut(chain_id, n, why) for chain_id, n in Counter(n.chain_id for n in notes).items()]
            return Findings(provider, [], [], 0, 0, 0, True, None, left_out)

        def ask_for(chains: Sequence[str | None]) -> ReportJudge:
            return ReportJudge(client, self.limits, chains, purse, self.settings.attempt_timeout_s)

        max_reminders = min(self.settings.chain(note.chain_id).max_reminders for note in notes)
        return await find_needs(notes, ask_for, budget_tokens, provider=provider, max_reminders=max_reminders)


def _hindrance(client: JudgeClient, budget_tokens: int) -> str | None:
    """Why this provider can be asked nothing as it is configured."""
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
        f"the prices of provider {provider!r} are not known, so nobody can say what the report costs; set "
        f"providers.{provider}.prices_usd_per_million_tokens"
    )
