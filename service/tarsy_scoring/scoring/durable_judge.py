"""
An attempt under way, and a judge whose turns are stored before the next question and count against the
fleet's limits.
"""

import asyncio
import hashlib
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tarsy_scoring.errors import AttemptError, AttemptTimedOut
from tarsy_scoring.judge.ask.client import JudgeClient
from tarsy_scoring.judge.clock import AttemptClock
from tarsy_scoring.judge.criteria import Criteria
from tarsy_scoring.judge.verdict import Message, Question, Turn, TurnKind
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.limits.rules import Call, Permit, Result
from tarsy_scoring.queue.claims import ClaimedScore
from tarsy_scoring.queue.store import SessionFacts, Step, Store, StoredTurn
from tarsy_scoring.scoring.binding import Binding
from tarsy_scoring.scoring.columns import Findings
from tarsy_scoring.telemetry.metrics import Metrics

PHASE_OF_TURN: Mapping[TurnKind, str] = {
    "analysis": "analyzing_methodology",
    "reminder": "analyzing_methodology",
    "repair": "repairing",
    "sample": "sampling",
    "masked": "sampling",
    "second_opinion": "sampling",
    "missing_tools": "identifying_missing_tools",
}


@dataclass(slots=True)
class Attempt(Findings):
    """
    An attempt's state; code that ends the attempt early reads how far it came.

    Args:
        clock: Measures this attempt's work.
        on_judged: Called when only the end is left to be stored.
    """

    claimed: ClaimedScore
    clock: AttemptClock
    on_judged: Callable[[], None]
    turns: list[StoredTurn] = field(default_factory=list)
    """All turns for the score; those from earlier attempts come first."""
    unstored: list[StoredTurn] = field(default_factory=list)
    """Turns that returned and are not stored yet; the next phase, or the end of the score, stores them."""
    storing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a step is stored: one among several samples asked at once stores the turn before them."""
    phase: str | None = None
    facts: SessionFacts | None = None
    """What the source said about the session and no event did; it is stored when the score ends."""
    binding: Binding | None = None


@dataclass
class DurableAsk:
    """
    Asks a provider, within the fleet's limits, for turns that survive a crash: a turn that an earlier attempt
    paid for is replayed.

    A new turn is stored with the phase that follows it, in one write and before the next question. A sample
    is stored at once, because other samples run beside it. The last turn is stored when the score ends,
    or by `flush` where the score does not end. A cancel loses at most a turn that returned in the same
    instant.

    Args:
        give_up_at: When a question fails, by the event loop's clock, also one that waits for a limit or a
            free slot; None: waits have no end.
    """

    attempt: Attempt
    clients: Mapping[str, JudgeClient]
    provider: str
    store: Store
    metrics: Metrics
    limits: Limits
    criteria: Criteria
    give_up_at: float | None = None

    def __post_init__(self) -> None:
        context, claimed = self.attempt.context, self.attempt.claimed
        assert context is not None
        self._question = (self.criteria.criteria_hash, context.context_hash, claimed.nonce)
        self._stored: dict[str | None, deque[Turn]] = defaultdict(deque)
        for s in self.attempt.turns:
            # One provider's refusal says nothing about another, and the conversation with a provider that
            # is no longer configured cannot go on. Another provider's second opinion is another opinion.
            is_answer = not s.turn.refusal and s.turn.finish_reason not in ("refusal", "content_filter")
            is_shared = is_answer and s.turn.provider in self.clients and s.turn.kind != "second_opinion"
            is_of_use = s.turn.provider == self.provider or is_shared
            if (s.criteria_hash, s.context_hash, s.nonce) == self._question and is_of_use:
                self._stored[s.asked_hash].append(s.turn)

    async def __call__(self, question: Question) -> Turn:
        kind = question.kind
        asked = asked_hash(kind, question.messages)
        if known := self._stored[asked]:
            return known.popleft()
        await flush(self.store, self.attempt, PHASE_OF_TURN[kind])
        try:
            if self.attempt.clock.left_s <= 0:
                raise AttemptTimedOut("the attempt's time was used up before the judge could be asked")
            turn = await self._ask_in_time(question)
        except AttemptError as error:
            self.metrics.turns_failed.labels(self.provider, error.word).inc()
            raise
        ordinal = max((s.ordinal for s in self.attempt.turns), default=0) + 1
        stored = StoredTurn(ordinal, *self._question, asked, turn)
        self.attempt.turns.append(stored)
        self.attempt.unstored.append(stored)
        count_turn(self.metrics, turn, self.attempt.claimed.chain_id)
        if kind == "sample":
            await flush(self.store, self.attempt)
        return turn

    async def _ask_in_time(self, question: Question) -> Turn:
        factor = self.limits.token_factor(self.provider)
        client = self.clients[self.provider]
        permits = ScorePermits(self.limits, self.attempt.claimed.chain_id, self.attempt.claimed.score_id)
        try:
            async with asyncio.timeout_at(self.give_up_at):
                return await client.ask(
                    question, clock=self.attempt.clock, permits=permits, token_factor=factor
                )
        except TimeoutError as error:
            raise AttemptTimedOut(
                f"{self.provider!r} had not answered when the attempt's time was up"
            ) from error


def count_turn(metrics: Metrics, turn: Turn, chain_id: str | None) -> None:
    """Count the time, tokens and cost of an answered call."""
    metrics.turn_duration.labels(turn.kind, turn.provider).observe(turn.latency_ms / 1000)
    for direction in ("input", "cached_input", "output"):
        metrics.tokens.labels(direction, turn.provider).inc(getattr(turn, f"{direction}_tokens") or 0)
    metrics.cost.labels(turn.provider, metrics.chain(chain_id)).inc(turn.cost_usd or 0)


@dataclass(frozen=True, slots=True)
class ScorePermits:
    """The fleet's limits for one score's calls; see `ask.client.Permits`."""

    limits: Limits
    chain_id: str | None
    score_id: UUID

    async def admit(self, provider: str, tokens: int, most_usd: float | None) -> Permit:
        return await self.limits.admit(Call(provider, self.chain_id, self.score_id, tokens, most_usd))

    async def settle(self, permit: Permit, **result: Any) -> None:
        await self.limits.settle(permit, Result(**result))


async def flush(store: Store, attempt: Attempt, phase: str | None = None) -> None:
    """
    Store the turns that are not stored yet, and announce `phase` where it is new. Takes no attempt
    time.

    Raises:
        LeaseLost: Another worker holds the score, or it was cancelled.
    """
    with attempt.clock.waiting():
        async with attempt.storing:
            turns, attempt.unstored = attempt.unstored, []
            is_new = phase is not None and phase != attempt.phase
            if turns or is_new:
                attempt.phase = phase or attempt.phase
                await store.record(Step(attempt.claimed, phase if is_new else None, turns))


def asked_hash(kind: TurnKind, messages: Sequence[Message]) -> str:
    """SHA-256 of a question. A stored answer is reused only for an equal question."""
    return hashlib.sha256(kind.encode() + b"".join(m.digest for m in messages)).hexdigest()
