"""
The spine: one attempt at a score, from the claim to its stored end, top to bottom.

    timeline -> chain and criteria -> evidence -> context -> judge (each turn checkpointed) -> end

An attempt ends in exactly one way: the score is completed, failed, put back with a due time, or its
lease was lost and it says nothing. A failure is never a number.
"""

import asyncio
import hashlib
import random
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import structlog
from pydantic_core import to_json

from tarsy_scoring.admission import Disposition, Policy, Priority, Request
from tarsy_scoring.errors import (
    AttemptTimedOut,
    EvidenceIncomplete,
    RetryLater,
    SessionNotFound,
    SessionNotReady,
    SessionNotTerminal,
    TimelineUnavailable,
    Unscorable,
    WaitFor,
)
from tarsy_scoring.events import SOURCE_COMPLETED, SOURCE_RESCORE
from tarsy_scoring.judge.criteria import Criteria, CriteriaRegistry
from tarsy_scoring.judge.llm import JudgeClient
from tarsy_scoring.judge.verdict import IsFinal, Message, ReplyFormat, Turn, TurnKind, Verdict
from tarsy_scoring.judging import Judges, flags_of, judge, token_factor
from tarsy_scoring.limits import Call, Limits, Permit, Result
from tarsy_scoring.outbox import NewEvent
from tarsy_scoring.settings import ChainSettings, ProviderSettings, Settings
from tarsy_scoring.store import ClaimedScore, Ending, Step, Store, StoredTurn
from tarsy_scoring.telemetry import Metrics
from tarsy_scoring.timeline.context import CONTEXT_POLICY, FittedContext
from tarsy_scoring.timeline.evidence import check_evidence
from tarsy_scoring.timeline.masking import MASKING_POLICY
from tarsy_scoring.timeline.model import Timeline, TimelineSource

log = structlog.get_logger()

FETCH_TIMEOUT_S = 60.0
BACKOFF_FIRST_S, BACKOFF_MOST_S, BACKOFF_JITTER = 10.0, 600.0, 0.2
SESSION_RECHECK_S = 2.0

PHASE_OF_TURN: Mapping[TurnKind, str] = {
    "analysis": "analyzing_methodology",
    "reminder": "analyzing_methodology",
    "repair": "repairing",
    "sample": "sampling",
    "masked": "sampling",
    "missing_tools": "identifying_missing_tools",
}


@dataclass(frozen=True, slots=True)
class Finished:
    """How an attempt ended, for the one log line about it."""

    outcome: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Attempt:
    """What is known in the middle of an attempt, also by whoever has to end it early."""

    claimed: ClaimedScore
    started: float
    deadline: float
    on_judged: Callable[[], None]
    turns: list[StoredTurn] = field(default_factory=list)
    """All turns of the score, those of earlier attempts first."""
    unstored: list[StoredTurn] = field(default_factory=list)
    """What returned last, until it is stored: with the next phase, or with the end of the score."""
    phase: str | None = None
    timeline: Timeline | None = None
    context: FittedContext | None = None

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self.started

    @property
    def left_s(self) -> float:
        return self.deadline - time.monotonic()


class Scorer:
    """
    Runs attempts; holds nothing between them.

    Args:
        clients: Judges by provider name.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        source: TimelineSource,
        registry: CriteriaRegistry,
        clients: Mapping[str, JudgeClient],
        metrics: Metrics,
        limits: Limits | None = None,
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._store = store
        self._source = source
        self._registry = registry
        self._clients = clients
        self._metrics = metrics
        self._policy: Policy = store.inbox.policy
        self._kept_criteria: set[str] = set()

    async def attempt(self, claimed: ClaimedScore, *, on_judged: Callable[[], None] = lambda: None) -> Finished:
        """
        Try to score what was claimed and store how it ended. Waits for a database that is away.

        Args:
            on_judged: Called when the judgement is done and only has to be stored.

        A cancel leaves the score in progress: whoever cancels gives it back, or it lapses.

        Raises:
            LeaseLost: The score belongs to somebody else now.
        """
        now = time.monotonic()
        attempt = _Attempt(claimed, now, now + self._settings.attempt_timeout_s, on_judged)
        try:
            return await self._judge(attempt)
        except WaitFor as error:
            return await self._wait(attempt, error)
        except RetryLater as error:
            return await self._retry(attempt, error)
        except Unscorable as error:
            return await self._fail(attempt, "failed", error.error_kind, str(error))

    async def end_broken(self, claimed: ClaimedScore, what: str, spent_s: float) -> Finished:
        """
        Put a score back whose attempt ended in an error nobody foresaw; the last attempt fails it.

        Raises:
            LeaseLost: The score belongs to somebody else now.
        """
        attempt = _Attempt(claimed, time.monotonic() - spent_s, 0, lambda: None)
        return await self._retry(attempt, RetryLater(f"the attempt broke off ({what}); the worker's log says where"))

    # --- the attempt -----------------------------------------------------------------------------------

    async def _judge(self, attempt: _Attempt) -> Finished:
        attempt.timeline = timeline = await self._fetch(attempt)
        why_not = await self._bind(attempt, timeline)
        if why_not is not None:
            return await self._decline(attempt, why_not)
        claimed = attempt.claimed
        chain = self._settings.chain(claimed.chain_id)
        criteria = self._registry.get(claimed.criteria or chain.criteria)
        await self._keep(criteria)
        check_evidence(timeline, self._settings.config.evidence.max_missing_share, may_change=self._source.may_change)
        if not chain.judge.enabled:
            return await self._complete(attempt, None, criteria)
        verdict = await self._assess(attempt, timeline, chain, criteria)
        return await self._complete(attempt, verdict, criteria)

    async def _fetch(self, attempt: _Attempt) -> Timeline:
        """The timeline; an event may be faster than its session, so "not there yet" is waited out."""
        claimed = attempt.claimed
        try:
            async with asyncio.timeout(min(FETCH_TIMEOUT_S, max(0.0, attempt.left_s))):
                return await self._source.fetch_timeline(claimed.session_id)
        except TimeoutError:
            raise TimelineUnavailable(f"reading session {claimed.session_id} took longer than allowed") from None
        except (SessionNotFound, SessionNotTerminal) as error:
            grace_left_s = self._settings.timeline_grace_s - claimed.age_s - attempt.spent_s
            if claimed.source in (SOURCE_COMPLETED, SOURCE_RESCORE) and grace_left_s > 0:
                due_s = min(SESSION_RECHECK_S, grace_left_s)
                raise SessionNotReady(str(error), due_s, error.error_kind) from error
            raise

    async def _bind(self, attempt: _Attempt, timeline: Timeline) -> Disposition | None:
        """
        Fix chain, criteria and hash where they were not known yet, or have changed since.

        Returns:
            Why the score is not to be made after all, where the source names a chain whose settings say so.
        """
        claimed = attempt.claimed
        chain_id = claimed.chain_id or timeline.chain_id
        name = claimed.criteria or self._settings.chain(chain_id).criteria
        criteria_hash = self._policy.hashes.get(name)
        if (chain_id, name, criteria_hash) != (claimed.chain_id, claimed.criteria, claimed.criteria_hash) or (
            timeline.alert_type and not claimed.alert_type
        ):
            attempt.claimed = await self._store.bind(
                claimed,
                chain_id=chain_id,
                alert_type=timeline.alert_type,
                labels=timeline.labels,
                criteria=name,
                criteria_hash=criteria_hash,
            )
        if claimed.chain_id is None and claimed.source == SOURCE_COMPLETED:
            request = Request(
                request_id=claimed.request_id,
                session_id=claimed.session_id,
                source=claimed.source,
                session_status=claimed.session_status or timeline.status,
                priority=Priority.AUTOMATIC,
            )
            return self._policy.filtered(request, chain_id)
        return None

    async def _keep(self, criteria: Criteria) -> None:
        """Keep the content of criteria before they judge for the first time."""
        if criteria.criteria_hash not in self._kept_criteria:
            await self._store.keep_criteria(criteria.criteria_hash, criteria.name, criteria.content)
            self._kept_criteria.add(criteria.criteria_hash)

    async def _assess(self, attempt: _Attempt, timeline: Timeline, chain: ChainSettings, criteria: Criteria) -> Verdict:
        """Judge, every turn durable; the last one is stored in the transaction that ends the score."""
        claimed = attempt.claimed
        if claimed.attempt > 1:
            attempt.turns += await self._store.stored_turns(claimed.score_id)

        def ask_of(provider: str, context: FittedContext) -> _DurableAsk:
            attempt.context = context
            gate = _Gate(self._limits, claimed) if self._limits else None
            return _DurableAsk(attempt, self._clients[provider], self._store, self._metrics, gate, criteria)

        factor = self._limits.token_factor if self._limits else lambda _provider: 1.0
        judges = Judges(self._settings.config.providers, ask_of, factor)
        verdict: Verdict | None = None
        try:
            judgement = await judge(timeline, claimed.nonce, chain, criteria, judges, self._is_final(attempt))
            attempt.context, verdict = judgement.context, judgement.verdict
            return verdict
        finally:
            if verdict is None:
                await flush(self._store, attempt)

    def _is_final(self, attempt: _Attempt) -> IsFinal:
        """
        Whether an optional turn that failed is given up: it failed for good, or no attempt or time is left.

        Must say yes wherever `_retry` or `_wait` would end the score: its total is already there.
        """

        def is_final(error: Exception) -> bool:
            burned = attempt.claimed.attempts_burned + 1
            spent_s = attempt.claimed.spent_s + attempt.spent_s
            if isinstance(error, WaitFor):
                return spent_s >= self._settings.deadline_s
            if isinstance(error, RetryLater):
                latest_s = spent_s + backoff_s(burned, 1)
                return burned >= self._settings.max_attempts or latest_s >= self._settings.deadline_s
            return True

        return is_final

    # --- the ways an attempt ends ----------------------------------------------------------------------

    async def _complete(self, attempt: _Attempt, verdict: Verdict | None, criteria: Criteria) -> Finished:
        claimed = attempt.claimed
        columns = self._columns(attempt, "completed")
        shown = attempt.context.context_hash if attempt.context else None
        turns = [s.turn for s in attempt.turns if s.context_hash == shown]
        columns |= judgement_columns(
            verdict, turns, attempt.timeline, attempt.context, criteria, self._settings.config.providers
        )
        event = {
            "outcome": None,
            "criteria": criteria.name,
            "criteria_hash": criteria.criteria_hash,
            "score_triggered_by": claimed.score_triggered_by,
            "alert_type": claimed.alert_type,
            "labels": dict(claimed.labels),
        } | {name: columns[name] for name in ("total_score", "judge_fingerprint", "failure_tags", "flags", "usage")}
        attempt.on_judged()
        await self._store.end(
            Ending(
                claimed,
                columns,
                NewEvent(claimed.score_id, "scoring.completed", event),
                missing_tools=verdict.missing_tools if verdict else (),
                alternative_approaches=verdict.alternative_approaches if verdict else (),
                turns=attempt.unstored,
            )
        )
        self._metrics.scores.labels("completed", "").inc()
        if verdict is not None and claimed.purpose == "production":
            self._metrics.score.observe(verdict.total_score)
        told = {"total_score": columns["total_score"], "flags": columns["flags"]}
        return Finished("completed", told | self._told(attempt))

    async def _decline(self, attempt: _Attempt, why: Disposition) -> Finished:
        """The chain turned out to be one that is not scored automatically: no score, and the request says why."""
        message = f"chain {attempt.claimed.chain_id!r} is not scored automatically: {why}"
        return await self._fail(attempt, "cancelled", "cancelled", message, disposition=why)

    async def _wait(self, attempt: _Attempt, error: WaitFor) -> Finished:
        if attempt.claimed.spent_s + attempt.spent_s >= self._settings.deadline_s:
            return await self._pass_deadline(attempt, error)
        await self._store.put_back(
            attempt.claimed,
            due_s=error.due_s,
            waiting_reason=error.waiting_for,
            burns=False,
            spent_s=attempt.spent_s,
            error_kind=error.error_kind,
            error_message=str(error),
        )
        return Finished(
            "put_back",
            {"waiting_for": error.waiting_for, "due_s": round(error.due_s, 1), "reason": str(error)}
            | self._told(attempt),
        )

    async def _retry(self, attempt: _Attempt, error: RetryLater) -> Finished:
        """Put the score back with backoff, or end it where attempts or deadline are used up."""
        claimed = attempt.claimed
        if isinstance(error, EvidenceIncomplete) and error.permanent:
            return await self._fail(attempt, "failed", error.error_kind, str(error))
        burned = claimed.attempts_burned + 1
        if burned >= self._settings.max_attempts:
            status = "timed_out" if isinstance(error, AttemptTimedOut) else "failed"
            return await self._fail(attempt, status, error.error_kind, f"{error} (attempt {burned}, the last)")
        due_s = backoff_s(burned, random.uniform(-1, 1))  # noqa: S311 - jitter
        if claimed.spent_s + attempt.spent_s + due_s >= self._settings.deadline_s:
            return await self._pass_deadline(attempt, error)
        await self._store.put_back(
            claimed,
            due_s=due_s,
            waiting_reason="retry",
            burns=True,
            spent_s=attempt.spent_s + due_s,
            error_kind=error.error_kind,
            error_message=str(error),
        )
        told = {"waiting_for": "retry", "due_s": round(due_s, 1), "error_kind": error.error_kind, "reason": str(error)}
        return Finished("put_back", told | self._told(attempt))

    async def _pass_deadline(self, attempt: _Attempt, last: Exception) -> Finished:
        message = f"not scored within {self._settings.deadline_s:g} s of attempts and backoff; last: {last}"
        return await self._fail(attempt, "timed_out", "deadline_passed", message)

    async def _fail(
        self, attempt: _Attempt, status: str, kind: str, message: str, *, disposition: Disposition | None = None
    ) -> Finished:
        claimed = attempt.claimed
        columns = self._columns(attempt, status) | {"error_kind": kind, "error_message": message}
        columns["attempts_burned"] = int(status != "cancelled")
        event = {"status": status, "error_kind": kind, "error_message": message}
        await self._store.end(
            Ending(claimed, columns, NewEvent(claimed.score_id, "scoring.failed", event), disposition=disposition)
        )
        self._metrics.scores.labels(status, kind).inc()
        return Finished(status, {"error_kind": kind, "reason": message} | self._told(attempt))

    def _columns(self, attempt: _Attempt, status: str) -> dict[str, Any]:
        """What every ended score says, however it ended."""
        return {
            "status": status,
            "spent_s": attempt.spent_s,
            "attempts_burned": 0,
            "usage": sum_usage(s.turn for s in attempt.turns),
            "samples": [],
            "failure_tags": [],
            "flags": [],
            **evidence_columns(attempt.timeline, attempt.context),
        }

    def _told(self, attempt: _Attempt) -> dict[str, Any]:
        """Numbers for the canonical line."""
        usage = sum_usage(s.turn for s in attempt.turns)
        return {
            "chain_id": attempt.claimed.chain_id,
            "criteria": attempt.claimed.criteria,
            "turns": len(attempt.turns),
            "context_tokens": attempt.context.tokens if attempt.context else None,
            **usage,
        }


class _DurableAsk:
    """
    The judge, with a memory: a turn that an earlier attempt paid for is replayed, a new one is stored.

    A returned turn is stored together with the phase that follows it, in one write and before anything
    else is asked; a sample, beside which others run, at once; the last one together with the end of the score,
    or by `flush` where there is no end. A cancel in between loses at most the storing of a turn that returned
    in the same instant.
    """

    def __init__(
        self,
        attempt: _Attempt,
        client: JudgeClient,
        store: Store,
        metrics: Metrics,
        gate: "_Gate | None",
        criteria: Criteria,
    ) -> None:
        assert attempt.context is not None
        self._attempt = attempt
        self._client = client
        self._store = store
        self._metrics = metrics
        self._gate = gate
        self._criteria = criteria
        self._context = attempt.context
        self._question = (criteria.criteria_hash, attempt.context.context_hash, attempt.claimed.nonce)
        self._stored: dict[str | None, deque[Turn]] = defaultdict(deque)
        for s in attempt.turns:
            # That one provider would not answer says nothing about another.
            is_of_use = s.turn.provider == client.provider or is_usable(s.turn)
            if (s.criteria_hash, s.context_hash, s.nonce) == self._question and is_of_use:
                self._stored[s.asked_hash].append(s.turn)

    async def __call__(
        self,
        kind: TurnKind,
        messages: Sequence[Message],
        *,
        reply_limit_factor: int = 1,
        reply_format: ReplyFormat | None = None,
    ) -> Turn:
        asked = asked_hash(kind, messages)
        if known := self._stored[asked]:
            self._metrics.turns.labels(kind, "replayed").inc()
            return known.popleft()
        has_unstored = bool(self._attempt.unstored)
        # A paid turn is stored before the next is asked; a phase alone may be announced meanwhile, so that a
        # burst of claims asks its judges one after the other and not all at the end of a common write.
        announcing = asyncio.create_task(flush(self._store, self._attempt, PHASE_OF_TURN[kind]))
        try:
            if has_unstored:
                await announcing
            left_s = self._attempt.left_s
            if left_s <= 0:
                raise AttemptTimedOut("the attempt's time was used up before the judge could be asked")
            turn = await self._client.ask(
                messages,
                kind,
                deadline_s=left_s,
                reply_limit_factor=reply_limit_factor,
                reply_format=reply_format,
                gate=self._gate,
            )
        finally:
            await announcing
        ordinal = max((s.ordinal for s in self._attempt.turns), default=0) + 1
        stored = StoredTurn(ordinal, *self._question, asked, turn)
        self._attempt.turns.append(stored)
        self._attempt.unstored.append(stored)
        self._count(turn)
        if kind == "sample":
            await flush(self._store, self._attempt)
        if self._gate is not None and kind in ("analysis", "sample"):
            await self._gate.learn(turn, self._context, self._criteria)
        return turn

    def _count(self, turn: Turn) -> None:
        self._metrics.turns.labels(turn.kind, "asked").inc()
        self._metrics.turn_duration.labels(turn.kind).observe(turn.latency_ms / 1000)
        for direction, tokens in (
            ("input", turn.input_tokens),
            ("cached_input", turn.cached_input_tokens),
            ("output", turn.output_tokens),
        ):
            self._metrics.tokens.labels(direction).inc(tokens or 0)
        self._metrics.cost.inc(turn.cost_usd or 0)


async def flush(store: Store, attempt: _Attempt, phase: str | None = None) -> None:
    """Store what returned last, and announce `phase` where it is new. Raises: LeaseLost."""
    turns, attempt.unstored = attempt.unstored, []
    is_new = phase is not None and phase != attempt.phase
    if turns or is_new:
        attempt.phase = phase or attempt.phase
        await store.record(Step(attempt.claimed, phase if is_new else None, turns))


class _Gate:
    """The fleet's limits, for the calls of one score."""

    def __init__(self, limits: Limits, claimed: ClaimedScore) -> None:
        self._limits = limits
        self._claimed = claimed

    async def admit(self, provider: str, tokens: int, most_usd: float | None) -> Permit:
        """See `llm.Gate`."""
        call = Call(provider, self._claimed.chain_id, self._claimed.score_id, tokens, most_usd)
        return await self._limits.admit(call)

    async def settle(self, permit: Permit, **result: Any) -> None:
        """See `llm.Gate`."""
        await self._limits.settle(permit, Result(**result))

    async def learn(self, turn: Turn, context: FittedContext, criteria: Criteria) -> None:
        """Remember that the model counts more tokens than we estimate."""
        factor = token_factor(turn, context, criteria)
        if factor is not None and factor > self._limits.token_factor(turn.provider):
            await self._limits.learn_token_factor(turn.provider, factor)


# --- decisions -----------------------------------------------------------------------------------------


def asked_hash(kind: TurnKind, messages: Sequence[Message]) -> str:
    """What was asked, as SHA-256: only an equal question may use a stored answer."""
    return hashlib.sha256(kind.encode() + b"".join(m.digest for m in messages)).hexdigest()


def is_usable(turn: Turn) -> bool:
    """Whether the turn says anything: neither refused nor filtered."""
    return not turn.refusal and turn.finish_reason not in ("refusal", "content_filter")


def backoff_s(burned: int, jitter: float) -> float:
    """
    Seconds until the next attempt: 10 s doubling to 10 min, +-20 %.

    Args:
        burned: Attempts that ended in an error so far, >= 1.
        jitter: -1 to 1.
    """
    return float(min(BACKOFF_FIRST_S * 2 ** (burned - 1), BACKOFF_MOST_S) * (1 + BACKOFF_JITTER * jitter))


def evidence_columns(timeline: Timeline | None, context: FittedContext | None) -> dict[str, Any]:
    """What could be read of the session, and how much of it the judge saw."""
    evidence = timeline.evidence if timeline else None
    return {
        "coverage": {"shown_share": context.shown_share, "cut_entries": list(context.cut_entries)} if context else None,
        "evidence": {"expected": evidence.expected, "read": evidence.read, "missing": list(evidence.missing)}
        if evidence
        else None,
    }


def judgement_columns(
    verdict: Verdict | None,
    turns: Sequence[Turn],
    timeline: Timeline | None,
    context: FittedContext | None,
    criteria: Criteria,
    providers: Mapping[str, ProviderSettings],
) -> dict[str, Any]:
    """What a completed score says of its judgement; without a verdict (no judge) there is no number."""
    flags = set(context.flags) if context else set()
    if timeline is not None and any(t.model_requested.lower() in timeline.agent_models for t in turns):
        flags.add("self_judged")
    if verdict is None:
        return {"total_score": None, "judge_fingerprint": None, "flags": sorted(flags)}
    who = verdict.total_turn
    grounding, rubric = verdict.grounding, verdict.rubric
    if context is not None:
        flags |= flags_of(turns, context, criteria)
    return {
        "total_score": verdict.total_score,
        "score_analysis": verdict.score_analysis,
        "score_breakdown": verdict.score_breakdown,
        "missing_tools_analysis": verdict.missing_tools_analysis,
        "judge_fingerprint": judge_fingerprint(criteria.criteria_hash, providers[who.provider], who),
        "judge_outcome": verdict.judge_outcome,
        "rubric": asdict(rubric) if rubric else None,
        "samples": [{"total_score": total} for total in verdict.samples],
        "spread": verdict.spread,
        "failure_tags": verdict.failure_tags,
        "grounding": {"checked": grounding.checked, "held": grounding.held, "share": grounding.share}
        if grounding
        else None,
        "flags": sorted(flags | verdict.flags),
    }


def sum_usage(turns: Iterable[Turn]) -> dict[str, int | float | None]:
    """Sums over turns; a sum is None where any part of it is unknown, or there is no turn."""
    listed = list(turns)

    def total(values: list[Any]) -> Any:
        return sum(values) if values and all(v is not None for v in values) else None

    return {
        "input_tokens": total([t.input_tokens for t in listed]),
        "cached_input_tokens": total([t.cached_input_tokens for t in listed]),
        "output_tokens": total([t.output_tokens for t in listed]),
        "cost_usd": total([t.cost_usd for t in listed]),
    }


def judge_fingerprint(criteria_hash: str, provider: ProviderSettings, turn: Turn) -> str:
    """Who answered, as SHA-256: scores under different fingerprints are not comparable without a break."""
    who = {
        "criteria": criteria_hash,
        "provider": turn.provider,
        "model_requested": turn.model_requested,
        "model_served": turn.model_served,
        "temperature": provider.temperature,
        "max_reply_tokens": provider.max_reply_tokens,
        "context_window_tokens": provider.context_window_tokens,
        "context_policy": CONTEXT_POLICY,
        "masking_policy": MASKING_POLICY,
    }
    return hashlib.sha256(to_json(who)).hexdigest()
