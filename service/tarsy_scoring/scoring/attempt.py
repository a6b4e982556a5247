"""
The spine: one attempt at a score, from the claim to its stored end, top to bottom.

    timeline -> chain and criteria -> interaction metrics -> evidence -> gates -> context -> judge (each turn
    checkpointed) -> outcome -> end

An attempt ends in exactly one way: the score is completed, failed, put back with a due time, or its
lease was lost and it says nothing. A failure is never a number.
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
MOST_KEPT_TOOLS = 1000  # hashes remembered as stored; sources may list other tools in every session
TOOLS_KEPT_S = 3600.0  # a clean-up may have removed it since, if no score referred to it
BACKOFF_FIRST_S, BACKOFF_MOST_S, BACKOFF_JITTER = 10.0, 600.0, 0.2
SESSION_RECHECK_S = 2.0
# The columns that `scoring.completed` carries as they are; of the interaction it carries the totals only.
PUBLISHED = sorted({*SET_AT_END} & {*ScoringCompleted.model_fields} - {"interaction"})


@dataclass(frozen=True, slots=True)
class Finished:
    """How an attempt ended, for the one log line about it."""

    outcome: str
    fields: dict[str, Any] = field(default_factory=dict)


class Scorer:
    """
    Runs attempts; holds nothing between them.

    Args:
        clients: Judges by provider name.
        tracing: Told of the phases of attempts.
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
        self._kept_tools: dict[str, float] = {}  # when, by hash

    async def attempt(self, claimed: ClaimedScore, *, on_judged: Callable[[], None] = lambda: None) -> Finished:
        """
        Try to score what was claimed and store how it ended. Waits for a database that is away.

        Args:
            on_judged: Called when there is nothing left to do but to store how it ended.

        A cancel leaves the score in progress: whoever cancels gives it back, or it lapses.

        Raises:
            LeaseLost: The score belongs to somebody else now.
        """
        now = time.monotonic()
        attempt = Attempt(claimed, now, now + self._settings.attempt_timeout_s, on_judged)
        if claimed.attempt > 1:  # earlier answers may be of use, and what they took counts however this one ends
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
        Put a score back whose attempt ended in an error nobody foresaw; the last attempt fails it.

        Raises:
            LeaseLost: The score belongs to somebody else now.
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

    async def _bind(self, attempt: Attempt, timeline: Timeline) -> Disposition | None:
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
            return self._policy.filtered(request, chain_id)
        return None

    async def _keep(self, criteria: Criteria) -> None:
        """Keep the content of criteria before they judge for the first time."""
        if criteria.criteria_hash not in self._kept_criteria:
            await self._store.keep_criteria(criteria.criteria_hash, criteria.name, criteria.content)
            self._kept_criteria.add(criteria.criteria_hash)

    async def _keep_tools(self, timeline: Timeline) -> None:
        """Keep the set of tools that the agents had, before a score refers to it."""
        names = tool_names(timeline)
        tools_hash = tools_hash_of(names)
        if tools_hash is None or time.monotonic() < self._kept_tools.get(tools_hash, -math.inf) + TOOLS_KEPT_S:
            return
        await self._store.keep_tools(tools_hash, names)
        if len(self._kept_tools) >= MOST_KEPT_TOOLS:
            self._kept_tools.clear()  # only a repeat of what is stored anyway
        self._kept_tools[tools_hash] = time.monotonic()

    async def _assess(self, attempt: Attempt, timeline: Timeline, chain: ChainSettings, criteria: Criteria) -> Verdict:
        """Judge, every turn durable; the last one is stored in the transaction that ends the score."""
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
        Whether an optional turn that failed is given up: it failed for good, or no attempt or time is left.

        Must say yes wherever `_retry` or `_wait` would end the score: its total is already there.
        """

        def is_final(error: Exception) -> bool:
            burned = attempt.claimed.attempts_burned + 1
            spent_s = attempt.claimed.spent_s + attempt.spent_s
            # What is left of this attempt may go to other providers before it ends.
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
        told = {"total_score": columns["total_score"], "flags": columns["flags"]}
        return Finished("completed", told | self._told(attempt))

    def _count(self, attempt: Attempt, columns: Mapping[str, Any]) -> None:
        """A completed score, for the metrics. Of what nobody waits for, only that it ended."""
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
        """The chain turned out to be one that is not scored automatically: no score, and the request says why."""
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
            | self._told(attempt),
        )

    async def _retry(self, attempt: Attempt, error: RetryLater) -> Finished:
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
        told = {"waiting_for": "retry", "due_s": round(due_s, 1), "error_kind": error.error_kind, "reason": str(error)}
        return Finished("put_back", told | self._told(attempt))

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
        return Finished(status, {"error_kind": kind, "reason": message} | self._told(attempt))

    def _columns(self, attempt: Attempt, status: str) -> dict[str, Any]:
        """What every ended score says, however it ended."""
        return {
            "status": status,
            "spent_s": attempt.spent_s,
            "attempts_burned": 0,
            **no_results(),
            "usage": sum_usage(s.turn for s in attempt.turns),
            **evidence_columns(attempt.timeline, attempt.context),
            **(attempt.layers.columns() if attempt.layers else {}),
        }

    def _told(self, attempt: Attempt) -> dict[str, Any]:
        """Numbers for the canonical line."""
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
    Seconds until the next attempt: 10 s doubling to 10 min, +-20 %.

    Args:
        burned: Attempts that ended in an error so far, >= 1.
        jitter: -1 to 1.
    """
    return float(min(BACKOFF_FIRST_S * 2 ** (burned - 1), BACKOFF_MOST_S) * (1 + BACKOFF_JITTER * jitter))
