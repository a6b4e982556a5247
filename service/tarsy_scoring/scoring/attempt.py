"""
One attempt at a score, from the claim to its stored end, top to bottom.

    timeline -> chain and criteria -> interaction metrics -> evidence -> gates -> context -> judge (each turn
    checkpointed) -> outcome -> end

An attempt ends in exactly one way: the score is completed, it fails, it is put back with a due time, or the
lease was lost and nothing is written. A failure is never a number.
"""

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import structlog

from tarsy_scoring.config.settings import ChainSettings, Settings
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
from tarsy_scoring.events import SOURCE_COMPLETED, SOURCE_RESCORE, ScoringCompleted
from tarsy_scoring.judge.criteria import Criteria, CriteriaRegistry
from tarsy_scoring.judge.llm import JudgeClient
from tarsy_scoring.judge.verdict import IsFinal, Verdict
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.queue.admission import Disposition, Policy, Priority, Request
from tarsy_scoring.queue.leases import ClaimedScore, Leases
from tarsy_scoring.queue.outbox import NewEvent
from tarsy_scoring.queue.score_fields import SET_AT_END, no_results
from tarsy_scoring.queue.store import Ending, Store
from tarsy_scoring.scoring.durable_judge import Attempt, DurableAsk, ScoreGate, flush
from tarsy_scoring.scoring.layers import check_gates, decided_columns, measure
from tarsy_scoring.scoring.providers import Judges, judge
from tarsy_scoring.scoring.score_columns import (
    evidence_columns,
    judgement_columns,
    sum_usage,
    tool_names,
    tools_hash_of,
)
from tarsy_scoring.telemetry.metrics import ASKED_BY, Metrics
from tarsy_scoring.telemetry.tracing import OFF, Tracing
from tarsy_scoring.timeline.context import FittedContext
from tarsy_scoring.timeline.evidence import check_evidence
from tarsy_scoring.timeline.model import Timeline, TimelineSource

log = structlog.get_logger()

FETCH_TIMEOUT_S = 60.0
MOST_KEPT_TOOLS = 1000  # hashes remembered as stored; a source may list different tools for every session
TOOLS_KEPT_S = 3600.0  # after that the clean-up may have removed a list to which no score refers
BACKOFF_FIRST_S, BACKOFF_MOST_S, BACKOFF_JITTER = 10.0, 600.0, 0.2
SESSION_RECHECK_S = 2.0
# The columns that `scoring.completed` carries as they are; of the interaction it carries the totals only.
PUBLISHED = sorted({*SET_AT_END} & {*ScoringCompleted.model_fields} - {"interaction"})


@dataclass(frozen=True, slots=True)
class Finished:
    """How an attempt ended, for its canonical log line."""

    outcome: str
    fields: dict[str, Any] = field(default_factory=dict)


class Scorer:
    """
    Runs attempts. It keeps no state of one attempt for the next.

    Args:
        clients: Judges by provider name.
        limits: None: calls are not limited, which only tests want.
        tracing: Receives a span for each phase.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        leases: Leases,
        store: Store,
        source: TimelineSource,
        registry: CriteriaRegistry,
        clients: Mapping[str, JudgeClient],
        metrics: Metrics,
        limits: Limits | None = None,
        tracing: Tracing = OFF,
    ) -> None:
        self._settings = settings
        self._tracing = tracing
        self._limits = limits
        self._leases = leases
        self._store = store
        self._source = source
        self._registry = registry
        self._clients = clients
        self._metrics = metrics
        self._policy: Policy = store.inbox.policy
        self._kept_criteria: set[str] = set()
        self._kept_tools: dict[str, float] = {}  # by hash: monotonic time at which the list was stored

    async def attempt(self, claimed: ClaimedScore, *, on_judged: Callable[[], None] = lambda: None) -> Finished:
        """
        Score a claimed session and store how the attempt ended. Waits while the database is away.

        A cancel leaves the score in progress: the caller puts it back, or its lease expires.

        Args:
            on_judged: Called when only the end is left to be stored.

        Raises:
            LeaseLost: Another worker holds the score, or it was cancelled.
        """
        now = time.monotonic()
        attempt = Attempt(claimed, now, now + self._settings.attempt_timeout_s, on_judged)
        if claimed.attempt > 1:  # earlier turns may answer the same questions, and their usage counts
            attempt.turns += await self._store.stored_turns(claimed.score_id)
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
        Put back a score whose attempt ended in an unforeseen error; after the last attempt, fail it.

        Raises:
            LeaseLost: Another worker holds the score, or it was cancelled.
        """
        attempt = Attempt(claimed, time.monotonic() - spent_s, 0, lambda: None)
        attempt.turns += await self._store.stored_turns(claimed.score_id)
        return await self._retry(attempt, RetryLater(f"the attempt broke off ({what}); the worker's log says where"))

    # --- the attempt -----------------------------------------------------------------------------------

    async def _judge(self, attempt: Attempt) -> Finished:
        with self._tracing.step("gathering_context"):
            attempt.timeline = timeline = await self._fetch(attempt)
            why_not = await self._bind(attempt, timeline)
        if why_not is not None:
            return await self._decline(attempt, why_not)
        claimed = attempt.claimed
        chain = self._settings.chain(claimed.chain_id)
        criteria = self._registry.get(claimed.criteria or chain.criteria)
        await self._keep(criteria)
        await self._keep_tools(timeline)
        attempt.layers = await measure(timeline, chain)
        check_evidence(timeline, self._settings.config.evidence.max_missing_share, may_change=self._source.may_change)
        if chain.gates:
            await flush(self._store, attempt, "evaluating_gates")
        with self._tracing.step("evaluating_gates") if chain.gates else nullcontext():
            attempt.layers = await check_gates(
                attempt.layers, timeline, chain, self._settings.config.gates, deadline_s=attempt.left_s
            )
        if not chain.judge.enabled:
            return await self._complete(attempt, None, criteria)
        verdict = await self._assess(attempt, timeline, chain, criteria)
        return await self._complete(attempt, verdict, criteria)

    async def _fetch(self, attempt: Attempt) -> Timeline:
        """
        Fetch the timeline.

        The event that asks for a score may arrive before the source shows the session, so within the grace
        period a session that is missing or still running is waited for.
        """
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

    async def _bind(self, attempt: Attempt, timeline: Timeline) -> Disposition | None:
        """
        Bind chain, criteria and criteria hash to the score, where they were unknown or have changed.

        Returns:
            Why the session is not scored, where the source names a chain that is not scored automatically.
        """
        claimed = attempt.claimed
        chain_id = claimed.chain_id or timeline.chain_id
        name = claimed.criteria or self._settings.chain(chain_id).criteria
        criteria_hash = self._policy.hashes.get(name)
        if (chain_id, name, criteria_hash) != (claimed.chain_id, claimed.criteria, claimed.criteria_hash) or (
            (timeline.alert_type and not claimed.alert_type) or claimed.session_status is None
        ):
            attempt.claimed = await self._store.bind(
                claimed,
                chain_id=chain_id,
                alert_type=timeline.alert_type,
                labels=timeline.labels,
                session_status=timeline.status,
                completed_at=timeline.completed_at if timeline.has_real_times else None,
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
            return self._policy.rejection(request, chain_id)
        return None

    async def _keep(self, criteria: Criteria) -> None:
        """Store the content of criteria before their first use."""
        if criteria.criteria_hash not in self._kept_criteria:
            await self._store.keep_criteria(criteria.criteria_hash, criteria.name, criteria.content)
            self._kept_criteria.add(criteria.criteria_hash)

    async def _keep_tools(self, timeline: Timeline) -> None:
        """Store the set of tools that the agents had, before a score refers to it."""
        names = tool_names(timeline)
        tools_hash = tools_hash_of(names)
        if tools_hash is None or time.monotonic() < self._kept_tools.get(tools_hash, -math.inf) + TOOLS_KEPT_S:
            return
        await self._store.keep_tools(tools_hash, names)
        if len(self._kept_tools) >= MOST_KEPT_TOOLS:
            self._kept_tools.clear()  # the price is one more write of a list that is already stored
        self._kept_tools[tools_hash] = time.monotonic()

    async def _assess(self, attempt: Attempt, timeline: Timeline, chain: ChainSettings, criteria: Criteria) -> Verdict:
        """Judge with durable turns. The last turn is stored in the transaction that ends the score."""
        claimed = attempt.claimed

        def ask_of(provider: str, context: FittedContext) -> DurableAsk:
            attempt.context = context
            gate = ScoreGate(self._limits, claimed) if self._limits else None
            return DurableAsk(attempt, self._clients, provider, self._store, self._metrics, gate, criteria)

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

    def _is_final(self, attempt: Attempt) -> IsFinal:
        """
        Whether a failed optional turn is given up, because its error is permanent or no attempt or time is
        left.

        True wherever `_retry` or `_wait` would end the score: the total is already known and must not be
        lost.
        """

        def is_final(error: Exception) -> bool:
            burned = attempt.claimed.attempts_burned + 1
            spent_s = attempt.claimed.spent_s + attempt.spent_s
            # Other providers may use up the remaining time of this attempt before it ends.
            latest_s = spent_s + max(0.0, attempt.left_s)
            if isinstance(error, WaitFor):
                return latest_s >= self._settings.deadline_s
            if isinstance(error, RetryLater):
                is_late = latest_s + backoff_s(burned, 1) >= self._settings.deadline_s
                return is_late or burned >= self._settings.max_attempts
            return True

        return is_final

    # --- the ways an attempt ends ----------------------------------------------------------------------

    async def _complete(self, attempt: Attempt, verdict: Verdict | None, criteria: Criteria) -> Finished:
        claimed = attempt.claimed
        columns = self._columns(attempt, "completed")
        shown = attempt.context.context_hash if attempt.context else None
        turns = [s.turn for s in attempt.turns if s.context_hash == shown]
        columns |= judgement_columns(
            verdict, turns, attempt.timeline, attempt.context, criteria, self._settings.config.providers
        )
        if attempt.layers is not None:
            chain = self._settings.chain(claimed.chain_id)
            columns |= decided_columns(attempt.layers, chain, criteria, verdict)
        event = {
            "criteria": criteria.name,
            "criteria_hash": criteria.criteria_hash,
            "score_triggered_by": claimed.score_triggered_by,
            "alert_type": claimed.alert_type,
            "labels": dict(claimed.labels),
            "interaction": attempt.layers.totals() if attempt.layers else None,
        } | {name: columns[name] for name in PUBLISHED}
        await self._end(
            attempt,
            Ending(
                claimed,
                columns,
                NewEvent(claimed.score_id, "scoring.completed", event),
                missing_tools=verdict.missing_tools if verdict else (),
                alternative_approaches=verdict.alternative_approaches if verdict else (),
                turns=attempt.unstored,
            ),
        )
        self._tracing.evaluated(criteria.name, columns["total_score"], columns.get("outcome"))
        self._count(attempt, columns)
        result = {"total_score": columns["total_score"], "flags": columns["flags"]}
        return Finished("completed", result | self._log_fields(attempt))

    def _count(self, attempt: Attempt, columns: Mapping[str, Any]) -> None:
        """Count a completed score; of scores for other purposes than production only that they ended."""
        claimed, metrics = attempt.claimed, self._metrics
        chain = metrics.chain(claimed.chain_id)
        metrics.scores.labels("completed", "", chain).inc()
        if claimed.purpose != "production":
            return
        if columns["total_score"] is not None:
            metrics.score.labels(chain).observe(columns["total_score"])
        metrics.score_outcomes.labels(columns.get("outcome") or "none", chain).inc()
        for flag in columns["flags"]:
            metrics.score_flags.labels(flag).inc()
        metrics.score_delay.labels(ASKED_BY[claimed.priority]).observe(claimed.age_s + attempt.spent_s)

    async def _end(self, attempt: Attempt, ending: Ending) -> None:
        attempt.on_judged()
        with self._tracing.step("storing"):
            await self._store.end(ending)

    async def _decline(self, attempt: Attempt, why: Disposition) -> Finished:
        """End the score as cancelled because its chain is not scored automatically; the request records why."""
        message = f"chain {attempt.claimed.chain_id!r} is not scored automatically: {why}"
        return await self._fail(attempt, "cancelled", "cancelled", message, disposition=why)

    async def _wait(self, attempt: Attempt, error: WaitFor) -> Finished:
        if attempt.claimed.spent_s + attempt.spent_s >= self._settings.deadline_s:
            return await self._pass_deadline(attempt, error)
        attempt.on_judged()
        await self._leases.put_back(
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
            | self._log_fields(attempt),
        )

    async def _retry(self, attempt: Attempt, error: RetryLater) -> Finished:
        """Put the score back with backoff, or end it when attempts or the deadline are used up."""
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
        attempt.on_judged()
        await self._leases.put_back(
            claimed,
            due_s=due_s,
            waiting_reason="retry",
            burns=True,
            spent_s=attempt.spent_s + due_s,
            error_kind=error.error_kind,
            error_message=str(error),
        )
        fields = {"waiting_for": "retry", "due_s": round(due_s, 1), "error_kind": error.error_kind}
        return Finished("put_back", fields | {"reason": str(error)} | self._log_fields(attempt))

    async def _pass_deadline(self, attempt: Attempt, last: Exception) -> Finished:
        message = f"not scored within {self._settings.deadline_s:g} s of attempts and backoff; last: {last}"
        return await self._fail(attempt, "timed_out", "deadline_passed", message)

    async def _fail(
        self, attempt: Attempt, status: str, kind: str, message: str, *, disposition: Disposition | None = None
    ) -> Finished:
        claimed = attempt.claimed
        columns = self._columns(attempt, status) | {"error_kind": kind, "error_message": message}
        columns["attempts_burned"] = int(status != "cancelled")
        event = {"status": status, "error_kind": kind, "error_message": message}
        failed = NewEvent(claimed.score_id, "scoring.failed", event)
        await self._end(attempt, Ending(claimed, columns, failed, disposition=disposition))
        self._metrics.scores.labels(status, kind, self._metrics.chain(claimed.chain_id)).inc()
        return Finished(status, {"error_kind": kind, "reason": message} | self._log_fields(attempt))

    def _columns(self, attempt: Attempt, status: str) -> dict[str, Any]:
        """The columns that every ended score has, however it ended."""
        return {
            "status": status,
            "spent_s": attempt.spent_s,
            "attempts_burned": 0,
            **no_results(),
            "usage": sum_usage(s.turn for s in attempt.turns),
            **evidence_columns(attempt.timeline, attempt.context),
            **(attempt.layers.columns() if attempt.layers else {}),
        }

    def _log_fields(self, attempt: Attempt) -> dict[str, Any]:
        """Numbers for the canonical log line."""
        usage = sum_usage(s.turn for s in attempt.turns)
        return {
            "chain_id": attempt.claimed.chain_id,
            "criteria": attempt.claimed.criteria,
            "turns": len(attempt.turns),
            "context_tokens": attempt.context.tokens if attempt.context else None,
            **usage,
        }


# --- decisions -----------------------------------------------------------------------------------------


def backoff_s(burned: int, jitter: float) -> float:
    """
    Seconds until the next attempt: 10 s, doubled for each failed attempt up to 10 min, +-20 %.

    Args:
        burned: Attempts that failed so far, >= 1.
        jitter: -1 to 1.
    """
    return float(min(BACKOFF_FIRST_S * 2 ** (burned - 1), BACKOFF_MOST_S) * (1 + BACKOFF_JITTER * jitter))
