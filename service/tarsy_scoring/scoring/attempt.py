"""
One attempt at a score, from the claim to the stored end, top to bottom.

    timeline -> chain and criteria -> interaction metrics -> evidence -> gates -> context -> judge (each turn
    checkpointed) -> outcome -> end

An attempt ends in exactly one way: the score is completed, it fails, it is put back with a due time, or the
lease was lost and nothing is written. A failure is never a number.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import structlog

from tarsy_scoring import errors
from tarsy_scoring.config.chains import ChainSettings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.events import SOURCE_COMPLETED, SOURCE_RESCORE, ScoringCompleted
from tarsy_scoring.gates.run import run_gates
from tarsy_scoring.judge.ask.client import JudgeClient
from tarsy_scoring.judge.clock import AttemptClock
from tarsy_scoring.judge.criteria import Criteria, CriteriaRegistry
from tarsy_scoring.judge.verdict import IsFinal, Turn, Verdict
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.outbox.outbox import NewEvent
from tarsy_scoring.queue.claims import ClaimedScore
from tarsy_scoring.queue.known_names import leave_to_others
from tarsy_scoring.queue.leases import BACKOFF_FIRST_S, BACKOFF_JITTER, BACKOFF_MOST_S, Leases
from tarsy_scoring.queue.store import Ending, SessionFacts, Store
from tarsy_scoring.scores.document import summary_of
from tarsy_scoring.scores.shapes import ScoreResults
from tarsy_scoring.scores.why_no_score import DISPOSITIONS
from tarsy_scoring.scoring.binding import binding_of
from tarsy_scoring.scoring.columns import completed_columns, sum_usage
from tarsy_scoring.scoring.durable_judge import Attempt, DurableAsk, flush
from tarsy_scoring.scoring.providers import Case, add_second_opinion, judge
from tarsy_scoring.scoring.watched_source import WatchedSource
from tarsy_scoring.telemetry.metrics import ASKED_BY, Metrics
from tarsy_scoring.telemetry.otel import OFF, Tracing
from tarsy_scoring.timeline.clean.masking import Masking, mask_labels, mask_secrets, masking_of
from tarsy_scoring.timeline.computing import compute
from tarsy_scoring.timeline.evidence import check_evidence, require_events
from tarsy_scoring.timeline.model import Timeline
from tarsy_scoring.timeline.render.context import FittedContext

log = structlog.get_logger()

FIRST_LOOK_S, LOOK_JITTER = 2.0, 0.2
# The columns that `scoring.completed` carries as they are; from the interaction it carries only totals.
LABELS_INLINE_CHARACTERS = 2_000  # masking these takes up to 30 ms
PUBLISHED = sorted({*ScoreResults.model_fields} & {*ScoringCompleted.model_fields} - {"interaction"})


@dataclass(frozen=True, slots=True)
class Finished:
    """How an attempt ended, for the canonical log line."""

    outcome: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class Scorer:
    """
    Runs attempts. It keeps no state from one attempt for the next.

    Args:
        clients: Judges by provider name.
        tracing: Receives a span for each phase.
    """

    settings: Settings
    leases: Leases
    store: Store
    source: WatchedSource
    registry: CriteriaRegistry
    clients: Mapping[str, JudgeClient]
    metrics: Metrics
    limits: Limits
    tracing: Tracing = OFF
    _kept: set[str] = field(default_factory=set, init=False)
    """Hashes of criteria that are stored."""

    async def attempt(
        self, claimed: ClaimedScore, *, on_judged: Callable[[], None] = lambda: None
    ) -> Finished:
        """
        Score a claimed session and store how the attempt ended. Waits while the database is away.

        A cancel leaves the score in progress: the caller puts it back, or the lease expires.

        Args:
            on_judged: Called when only the end is left to be stored.

        Raises:
            LeaseLost: Another worker holds the score, or it was cancelled.
        """
        attempt = Attempt(claimed, AttemptClock(self.settings.attempt_timeout_s), on_judged)
        if claimed.attempt > 1:  # earlier turns may answer the same questions, and their usage counts
            attempt.turns += await attempt.clock.untimed(self.store.stored_turns(claimed.score_id))
        try:
            return await self._judge(attempt)
        except (errors.WaitFor, errors.RetryLater) as error:
            return await self._put_back(attempt, error)
        except errors.Unscorable as error:
            return await self._fail(attempt, error.status, error.error_kind, str(error))

    async def end_broken(self, claimed: ClaimedScore, what: str, spent_s: float) -> Finished:
        """
        Put back a score whose attempt ended in an unforeseen error; after the last attempt, fail it.

        Raises:
            LeaseLost: Another worker holds the score, or it was cancelled.
        """
        attempt = Attempt(claimed, AttemptClock(0, spent_s), lambda: None)
        attempt.turns += await self.store.stored_turns(claimed.score_id)
        broken = errors.RetryLater(f"the attempt broke off ({what}); the worker's log says where")
        return await self._put_back(attempt, broken)

    # --- the attempt -----------------------------------------------------------------------------------

    async def _judge(self, attempt: Attempt) -> Finished:
        config = self.settings.config
        if attempt.claimed.is_unreadable:
            raise errors.Unscorable(
                "the stored labels or reference of the session cannot be read: correct the row, or erase it"
            )
        with self.tracing.step("gathering_context"):
            attempt.timeline = timeline = await self._fetch(attempt)
            if (ended := await self._bind(attempt, timeline)) is not None:
                return ended
        claimed = attempt.claimed
        chain = self.settings.chain(claimed.chain_id)
        criteria = self.registry.of_chain(chain, claimed.criteria)
        await self._keep(attempt, criteria)
        masking = masking_of(config.masking_patterns)
        await attempt.measure(timeline, chain, masking)
        check_evidence(timeline, config.evidence.max_missing_share, may_change=self.source.may_change)
        attempt.gates = []
        if chain.gates:
            await flush(self.store, attempt, "evaluating_gates")
            with self.tracing.step("evaluating_gates"):
                limit_s = attempt.clock.left_s
                attempt.gates = await run_gates(
                    chain.gates, timeline, config.gates, deadline_s=limit_s, masking=masking
                )
        verdict = await self._assess(attempt, timeline, chain, criteria) if chain.judge else None
        return await self._complete(attempt, verdict, criteria)

    async def _fetch(self, attempt: Attempt) -> Timeline:
        """
        Fetch the timeline.

        The event that asks for a score may arrive before the source shows the session, so within the grace
        period a session that is missing, still running or without events is looked for again. A look becomes
        an attempt when the session is there.
        """
        claimed, timeline = attempt.claimed, None
        try:
            timeline = await self.source.fetch_timeline(claimed.session_id, attempt.clock)
            if self.source.may_change:
                require_events(timeline)
        except (errors.SessionNotFound, errors.SessionNotTerminal, errors.NothingToJudge) as error:
            age_s, grace_s = claimed.age_s + attempt.clock.elapsed_s, self.settings.timeline_grace_s
            if claimed.source in (SOURCE_COMPLETED, SOURCE_RESCORE) and age_s < grace_s:
                due_s = look_again_s(age_s, grace_s, random.uniform(0, 1))  # noqa: S311 - jitter
                raise errors.WaitFor(str(error), due_s, "session", error.error_kind) from error
            if timeline is None:
                raise
        if claimed.is_lookup_only:
            attempt.claimed = await attempt.clock.untimed(self.leases.begin_attempt(claimed))
        return replace(timeline, reference=claimed.reference["text"]) if claimed.reference else timeline

    async def _bind(self, attempt: Attempt, timeline: Timeline) -> Finished | None:
        """
        Store the score's chain, criteria and criteria hash, where they were unknown or have changed.

        What else the source says about the session is stored with them, or else when the score ends.

        Returns:
            How the attempt ended, if the score is left to workers that know its chain, or the chain declines
            the request.
        """
        claimed, clock, inbox = attempt.claimed, attempt.clock, self.store.inbox
        attempt.binding = bound = binding_of(claimed, timeline, self.settings, inbox.policy)
        if bound.is_of_others and await clock.untimed(
            leave_to_others(inbox, claimed, bound.chain_id or "", bound.known_criteria, clock.spent_s)
        ):
            return Finished("released", {"chain_id": timeline.chain_id})
        masking = masking_of(self.settings.config.masking_patterns)
        size = sum(len(name) + len(value) for name, value in timeline.labels.items())
        facts = await compute(size, partial(facts_of, timeline, masking), inline=LABELS_INLINE_CHARACTERS)
        declined = None
        if bound.why_not is not None:
            message = f"chain {bound.chain_id!r} is not scored automatically: {DISPOSITIONS[bound.why_not]}"
            ending = self._failure(attempt, "cancelled", "cancelled", message)
            declined = replace(ending, disposition=bound.why_not)
        elif not bound.is_news:
            if (informed := facts.added_to(claimed)) != claimed:
                attempt.claimed, attempt.facts = informed, facts
            return None
        attempt.claimed, is_declined = await clock.untimed(
            self.store.bind(
                claimed,
                chain_id=bound.chain_id,
                criteria=bound.criteria,
                criteria_hash=bound.criteria_hash,
                facts=facts,
                declined=declined,
                is_chain_of_source=bound.is_certain,
            )
        )
        return self._failed(attempt, declined) if declined is not None and is_declined else None

    async def _keep(self, attempt: Attempt, criteria: Criteria) -> None:
        """Store criteria before a score refers to their hash; they are never removed."""
        hash_ = criteria.criteria_hash
        if hash_ not in self._kept:
            storing = self.store.keep_criteria(hash_, criteria.name, criteria.content)
            await attempt.clock.untimed(storing)
            self._kept.add(hash_)

    async def _assess(
        self, attempt: Attempt, timeline: Timeline, chain: ChainSettings, criteria: Criteria
    ) -> Verdict:
        """Judge with durable turns. The last turn is stored in the transaction that ends the score."""
        claimed, config = attempt.claimed, self.settings.config
        # Turns from a provider that the chain no longer has are not continued.
        clients = {name: client for name, client in self.clients.items() if name in chain.providers}
        give_up_at: float | None = None

        def ask_of(provider: str, context: FittedContext) -> DurableAsk:
            attempt.context = context
            parts = (self.store, self.metrics, self.limits, criteria)
            return DurableAsk(attempt, clients, provider, *parts, give_up_at)

        masking = masking_of(config.masking_patterns)
        factor = self.limits.token_factor
        case = Case(timeline, claimed.nonce, chain, criteria, config.providers, ask_of, factor, masking)
        verdict: Verdict | None = None
        try:
            judgement = await judge(case, self._is_final(attempt))
            # The total is known, so nothing that follows may hold it up for longer than the attempt may last.
            give_up_at = asyncio.get_running_loop().time() + self._left_s(attempt)
            if claimed.purpose == "production":
                await add_second_opinion(judgement, case)
            attempt.context, verdict = judgement.context, judgement.verdict
            return verdict
        finally:
            if verdict is None:
                await flush(self.store, attempt)

    def _left_s(self, attempt: Attempt) -> float:
        """Seconds until the attempt's time, or the score's time for all attempts, is used up."""
        clock, deadline_s = attempt.clock, self.settings.deadline_s
        return min(clock.left_s, deadline_s - attempt.claimed.spent_s - clock.spent_s)

    def _is_final(self, attempt: Attempt) -> IsFinal:
        """
        Return the test whether a failed optional turn is given up: the error is permanent, or no attempt or
        time is left.

        True wherever `_put_back` would end the score: the total is already known and must not be lost.
        """

        def is_final(error: Exception) -> bool:
            if not isinstance(error, errors.WaitFor | errors.RetryLater):
                return True
            claimed, clock = attempt.claimed, attempt.clock
            # Other providers may use up the time left before this attempt ends.
            latest_s = claimed.spent_s + clock.spent_s + max(0.0, clock.left_s)
            if isinstance(error, errors.RetryLater):
                burned = claimed.attempts_burned + 1
                if burned >= self.settings.max_attempts:
                    return True
                latest_s += backoff_s(burned, 1)
            return latest_s >= self.settings.deadline_s

        return is_final

    # --- the ways an attempt ends ----------------------------------------------------------------------

    async def _complete(self, attempt: Attempt, verdict: Verdict | None, criteria: Criteria) -> Finished:
        claimed, columns = attempt.claimed, self._completed_columns(attempt, verdict, criteria)
        event = {
            "criteria": criteria.name,
            "criteria_hash": criteria.criteria_hash,
            "score_triggered_by": claimed.score_triggered_by,
            "alert_type": claimed.alert_type,
            "labels": dict(claimed.labels),
            "has_reference": columns["reference"] is not None,
            "summary": summary_of(columns["score_analysis"]),
            **attempt.totals(),
            **{name: columns[name] for name in PUBLISHED},
        }
        ending = Ending(
            claimed,
            columns,
            NewEvent(claimed.score_id, "scoring.completed", event),
            missing_tools=verdict.missing_tools if verdict else (),
            alternative_approaches=verdict.alternative_approaches if verdict else (),
            turns=attempt.unstored,
            facts=attempt.facts,
        )
        await self._end(attempt, ending)
        self.tracing.evaluated(criteria.name, columns["total_score"], columns.get("outcome"))
        self._count(attempt, columns)
        result = {"total_score": columns["total_score"], "flags": columns["flags"]}
        return Finished("completed", result | self._log_fields(attempt))

    def _completed_columns(
        self, attempt: Attempt, verdict: Verdict | None, criteria: Criteria
    ) -> dict[str, Any]:
        claimed, columns = attempt.claimed, self._columns(attempt, "completed")
        turns = _turns_behind(attempt)
        columns |= completed_columns(attempt, verdict, turns, criteria, self.settings, claimed.chain_id)
        if attempt.has_reference:
            columns["reference"] = {k: v for k, v in (claimed.reference or {}).items() if k != "text"}
        if attempt.binding is not None and attempt.binding.is_mismatch:
            columns["flags"] = sorted({*columns["flags"], "chain_mismatch"})
        if claimed.is_reference_refused:
            columns["flags"] = sorted({*columns["flags"], "reference_refused"})
        return columns

    def _count(self, attempt: Attempt, columns: Mapping[str, Any]) -> None:
        """Count a completed score; one for another purpose than production counts only as ended."""
        claimed, metrics = attempt.claimed, self.metrics
        chain = metrics.chain(claimed.chain_id)
        metrics.scores.labels("completed", "", chain).inc()
        if claimed.purpose != "production":
            return
        if columns["total_score"] is not None and columns["reference"] is None:
            metrics.score.labels(chain).observe(columns["total_score"])
        metrics.score_outcomes.labels(columns["outcome"] or "none", chain).inc()
        for flag in columns["flags"]:
            metrics.score_flags.labels(flag).inc()
        metrics.score_delay.labels(ASKED_BY[claimed.priority]).observe(
            claimed.age_s + attempt.clock.elapsed_s
        )

    async def _end(self, attempt: Attempt, ending: Ending) -> None:
        attempt.on_judged()
        with self.tracing.step("storing"):
            await self.store.end(ending)

    async def _put_back(self, attempt: Attempt, error: errors.WaitFor | errors.RetryLater) -> Finished:
        """
        Put the score back with a due time, or end it when attempts or the deadline are used up.

        An error that is no wait burns an attempt, and its backoff counts as time spent.
        """
        claimed, spent_s, kind = attempt.claimed, attempt.clock.spent_s, error.error_kind
        burns = isinstance(error, errors.RetryLater)
        if isinstance(error, errors.WaitFor):
            waiting_for, due_s, text = error.waiting_for, error.due_s, str(error)
            spent_s = 0 if waiting_for == "source" else spent_s
        else:
            burned = claimed.attempts_burned + 1
            if isinstance(error, errors.EvidenceIncomplete) and error.permanent:
                return await self._fail(attempt, "failed", kind, str(error))
            if burned >= self.settings.max_attempts:
                status = "timed_out" if isinstance(error, errors.AttemptTimedOut) else "failed"
                return await self._fail(attempt, status, kind, f"{error} (attempt {burned}, the last)")
            waiting_for, due_s = "retry", backoff_s(burned, random.uniform(-1, 1))  # noqa: S311 - jitter
            text = f"attempt {claimed.attempt} failed ({kind}): {error}"
            spent_s += due_s
        if claimed.spent_s + spent_s >= self.settings.deadline_s:
            within = f"not scored within {self.settings.deadline_s:g} s of attempts and backoff"
            return await self._fail(attempt, "timed_out", "deadline_passed", f"{within}; last: {error}")
        attempt.on_judged()
        await self.leases.put_back(
            claimed,
            due_s=due_s,
            waiting_reason=waiting_for,
            burns=burns,
            spent_s=spent_s,
            waiting_for_text=text,
        )
        shown = {"waiting_for": waiting_for, "due_s": round(due_s, 1), "reason": str(error)}
        shown |= {"error_kind": kind} if burns else {}
        return Finished("put_back", shown | self._log_fields(attempt))

    async def _fail(self, attempt: Attempt, status: str, kind: str, message: str) -> Finished:
        ending = self._failure(attempt, status, kind, message)
        await self._end(attempt, ending)
        return self._failed(attempt, ending)

    def _failure(self, attempt: Attempt, status: str, kind: str, message: str) -> Ending:
        claimed = attempt.claimed
        event = {"status": status, "error_kind": kind, "error_message": message}
        columns = self._columns(attempt, status) | event | {"attempts_burned": int(status != "cancelled")}
        last = NewEvent(claimed.score_id, "scoring.failed", event)
        return Ending(claimed, columns, last, facts=attempt.facts)

    def _failed(self, attempt: Attempt, ending: Ending) -> Finished:
        """Count a score that ended without a total."""
        status, kind, message = (ending.columns[name] for name in ("status", "error_kind", "error_message"))
        self.metrics.scores.labels(status, kind, self.metrics.chain(attempt.claimed.chain_id)).inc()
        return Finished(status, {"error_kind": kind, "reason": message} | self._log_fields(attempt))

    def _columns(self, attempt: Attempt, status: str) -> dict[str, Any]:
        ended = {"status": status, "spent_s": attempt.clock.spent_s, "attempts_burned": 0}
        return ended | attempt.columns(s.turn for s in attempt.turns)

    def _log_fields(self, attempt: Attempt) -> dict[str, Any]:
        """Numbers for the canonical log line."""
        usage = sum_usage(s.turn for s in attempt.turns)
        return {
            "attempt": attempt.claimed.attempt,  # a look that found the session has become one
            "chain_id": attempt.claimed.chain_id,
            "criteria": attempt.claimed.criteria,
            "turns": len(attempt.turns),
            "context_tokens": attempt.context.tokens if attempt.context else None,
            **usage,
        }


# --- decisions -----------------------------------------------------------------------------------------


def _turns_behind(attempt: Attempt) -> list[Turn]:
    """The turns behind the total: those that saw the last context, without a second opinion."""
    shown = attempt.context.context_hash if attempt.context else None
    return [s.turn for s in attempt.turns if s.context_hash == shown and s.turn.kind != "second_opinion"]


def facts_of(timeline: Timeline, masking: Masking) -> SessionFacts:
    """
    What the source says about the session, masked. A source without real times does not know when it ended.
    """
    ended_at = timeline.completed_at if timeline.has_real_times else None
    alert_type = mask_secrets(timeline.alert_type or "", masking) or None
    return SessionFacts(alert_type, mask_labels(timeline.labels, masking), timeline.status, ended_at)


def look_again_s(age_s: float, grace_s: float, jitter: float) -> float:
    """
    Seconds until a session is looked for again: 2 s, then as long as it has been looked for, at most a
    quarter of the grace period. The last look is when the grace period ends.

    Args:
        age_s: The request's age, below `grace_s`.
        jitter: 0 to 1; makes the pause up to a fifth longer.
    """
    pause_s = min(max(age_s, FIRST_LOOK_S), grace_s / 4)
    return min(pause_s * (1 + LOOK_JITTER * jitter), grace_s - age_s)


def backoff_s(burned: int, jitter: float) -> float:
    """
    Seconds until the next attempt: 10 s, doubled for each failed attempt up to 10 min, +-20 %.

    Args:
        burned: Attempts that failed so far, >= 1.
        jitter: -1 to 1.
    """
    return float(min(BACKOFF_FIRST_S * 2 ** (burned - 1), BACKOFF_MOST_S) * (1 + BACKOFF_JITTER * jitter))
