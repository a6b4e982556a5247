"""
The worker: claims due scores for free slots, renews their leases, takes over expired scores, and drains.

Laws. Leases are renewed for an explicit list that is made before the query, so a score that no task
runs loses the lease. A task whose lease is lost is cancelled and writes nothing more. Judging never waits for
Kafka.
"""

import asyncio
import contextlib
import math
import random
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import LeaseLost
from tarsy_scoring.events import SOURCE_COMPLETED, SOURCE_RESCORE
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.postgres.database import RETRY_MIN_S, DatabaseAway
from tarsy_scoring.postgres.transactions import TRANSACTION_S
from tarsy_scoring.queue.backlog import open_scores
from tarsy_scoring.queue.claims import ChainFilter, ClaimedScore, suspect_losses_of
from tarsy_scoring.queue.known_names import announce, fail_unknown
from tarsy_scoring.queue.leases import Leases
from tarsy_scoring.scoring.attempt import Finished, Scorer
from tarsy_scoring.scoring.watched_source import WatchedSource
from tarsy_scoring.telemetry.metrics import CIRCUIT_KINDS, HOLDS, Metrics
from tarsy_scoring.telemetry.otel import OFF, AttemptTrace, Tracing

log = structlog.get_logger()

POLL_S = 1.0
LIMITS_EVERY_S = 1.0  # how soon every worker learns about a pause or an open circuit
GAUGES_EVERY_S = 5.0
RELEASE_TIMEOUT_S = 10.0
# The server ends a transaction that lost the client, and rows that another transaction has locked are passed
# over.
UNTRACKED_S = 2.0 * TRANSACTION_S
# Longest time that `run` takes after the drain and for the claim before it: four steps, each limited.
STOP_S = 4 * RELEASE_TIMEOUT_S


@dataclass(slots=True)
class TakeoverGuard:
    """
    How long a worker has renewed leases without a break.

    A lease that expired says nothing about the worker if the same outage cut off that worker. So a worker
    takes scores back only after it has been in contact with the database for one lease time: by then every
    other worker has renewed. Times are read from this process's monotonic clock.
    """

    lease_s: float
    _since: float = math.inf
    _last: float = -math.inf

    def renewed(self, now: float) -> None:
        """Record a successful renewal, even with no leases to renew."""
        if self._is_broken(now):
            self._since = now
        self._last = now

    def is_settled(self, now: float) -> bool:
        """Whether contact has lasted for one lease time."""
        return not self._is_broken(now) and now - self._since >= self.lease_s

    def _is_broken(self, now: float) -> bool:
        # Renewals come three times per lease, so one failed. A break that is long enough to expire
        # a living worker's lease lasts longer: at least what the last renewal left, two thirds of the
        # lease.
        return now - self._last > self.lease_s / 2


@dataclass(slots=True)
class _Running:
    """An attempt under way. `is_judging` becomes false when only the end is left to be stored."""

    claimed: ClaimedScore
    trace: AttemptTrace
    names: dict[str, str | int]
    """Fields that every log line about the attempt carries."""
    task: asyncio.Task[None]
    started: float = field(default_factory=time.monotonic)
    is_judging: bool = True
    has_lost_its_lease: bool = False


@dataclass(kw_only=True)
class Worker:
    """
    Claims and judges scores in up to `slots` tasks.

    A score takes a slot while it is judged, not while the end is being stored. Cancelling `run` leaves
    claimed scores to expire with their leases; draining puts them back at once.

    Args:
        tracing: Receives a trace per attempt, from the claim to the canonical log line.
    """

    settings: Settings
    leases: Leases
    scorer: Scorer
    source: WatchedSource
    metrics: Metrics
    limits: Limits
    tracing: Tracing = OFF
    owner: uuid.UUID = field(default_factory=uuid.uuid4)
    """Per boot: a restarted worker does not continue old leases."""
    # By lease token: this worker may claim a score again while the lost attempt is still being cancelled.
    _running: dict[uuid.UUID, _Running] = field(default_factory=dict, init=False)
    _locked: list[ClaimedScore] = field(default_factory=list, init=False)
    _has_locked: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _may_hold_untracked_until: float = field(default=-math.inf, init=False)
    """Monotonic time until which a claim that failed may still be committed."""
    _waits_for_an_end: bool = field(default=True, init=False)
    """Whether an attempt that ends makes room for a score that the last claim left."""

    def __post_init__(self) -> None:
        self._database = self.leases.database
        self._takeover_guard = TakeoverGuard(self.settings.lease_s)
        # As with leases: after an outage each worker has the grace to announce names again.
        self._announced = TakeoverGuard(self.settings.unknown_criteria_grace_s)
        self._topics = {
            SOURCE_COMPLETED: self.settings.topic_session_completed,
            SOURCE_RESCORE: self.settings.topic_rescore_requested,
        }
        self.metrics.slots.set(self.settings.slots)

    async def run(self, stopping: asyncio.Event) -> None:
        """
        Claim and judge until `stopping`, then drain within the configured time, and end within `STOP_S` more.

        Raises:
            StartRefused: The source answers and lacks what this service needs.
        """
        repeated = [
            (self.settings.lease_s / 3, self.keep_leases),
            (self.settings.lease_s / 4, self.take_back_expired),
            (self.leases.inbox.policy.announce_every_s, self.announce_names),
            (LIMITS_EVERY_S, self.refresh_limits),
            (GAUGES_EVERY_S, self.read_gauges),
        ]
        works = [self.keep_locked_leases(), self.source.watch(), *(self._every(*one) for one in repeated)]
        keepers = [asyncio.create_task(work) for work in works]
        loops = list(keepers)
        stop = asyncio.create_task(stopping.wait())
        try:
            await self.source.check()
            with contextlib.suppress(DatabaseAway):
                await self.announce_names()
            await self.refresh_limits()
            loops.append(asyncio.create_task(self._claim_until(stopping)))
            await _first_to_end([*loops, stop])
            # A claim under way may wait for the database longer than that; what it still claims is released.
            await _first_to_end(loops, RELEASE_TIMEOUT_S)
            await self._drain(keepers)
        finally:
            await _cancelled([stop, *loops, *(r.task for r in self._running.values())])

    async def _every(self, period_s: float, work: Callable[[], Awaitable[None]]) -> None:
        """
        Do the work for ever, first after a random share of the period, so that workers do not run in step.

        A pass is skipped while the database is away: a lease outlives two missed renewals.
        """
        patience = self._database.patience()
        await asyncio.sleep(period_s * random.random())  # noqa: S311 - jitter
        while True:
            with patience:
                await work()
            await asyncio.sleep(period_s * random.uniform(0.9, 1.0))  # noqa: S311 - jitter

    async def _claim_until(self, stopping: asyncio.Event) -> None:
        patience = self._database.patience()
        while not stopping.is_set():
            free = self._free_slots() if self.source.away is None else 0
            claimed, self._waits_for_an_end = 0, True
            with patience:
                await self.release_untracked()
                if free > 0:
                    claimed = await self.claim(free)
            if claimed < free or free <= 0:  # a notification wakes us, or an attempt that ends
                self._waits_for_an_end = free <= 0 or self._runs_suspect() or self._is_probing()
                # At unequal lengths, so that workers do not poll in step.
                await self._database.wait_notified("scores", POLL_S * random.uniform(0.8, 1.0))  # noqa: S311

    async def release_untracked(self) -> None:
        """
        Put back what a claim without a reply has claimed. A lease that lapses counts as a lost worker, and
        this worker lives.

        Raises:
            DatabaseAway: See `Database.once`.
        """
        if time.monotonic() < self._may_hold_untracked_until:
            await self.leases.release_untracked(self.owner, self._running.keys())

    def _free_slots(self) -> int:
        """How many slots are left for attempts; 0 or less if none."""
        # At most two attempts per slot, ends included: ends that wait for a slow database would pile up.
        slots = self.settings.slots
        judging = sum(r.is_judging for r in self._running.values())
        self.metrics.slots_busy.set(judging)
        return min(slots - judging, 2 * slots - len(self._running))

    def _runs_suspect(self) -> bool:
        least = suspect_losses_of(self.settings.max_attempts)
        return any(r.claimed.losses >= least for r in self._running.values())

    def _is_probing(self) -> bool:
        """Whether an attempt under way tries a provider with an open circuit."""
        known = self.limits.standings()
        return any(known.of(r.claimed.chain_id).may_probe for r in self._running.values())

    async def claim(self, limit: int) -> int:
        """
        Claim up to `limit` due scores and start an attempt at each.

        Raises:
            DatabaseAway: Scores that this call had already claimed are under way.
        """
        known = self.limits.standings()
        trying = 0
        # Probes come first: other chains may fill every slot for hours, and a provider with an open circuit
        # would never be tried again. One score at a time probes in this worker.
        may_probe = known.others.may_probe or any(s.may_probe for s in known.by_chain.values())
        if may_probe and not self._is_probing():
            trying = await self._claim_of(ChainFilter.of(known, lambda s: s.may_probe), 1)
        if trying < limit:
            rest = ChainFilter.of(known, lambda s: s.reason is None)
            trying += await self._claim_of(rest, limit - trying)
        return trying

    async def _claim_of(self, chains: ChainFilter, limit: int) -> int:
        """Claim up to `limit` due scores in these chains and start them at once."""
        # If this worker ends, only one suspect was in it, so that no other can be taken for the cause.
        # No await after the claim: an untracked lease would expire.
        try:
            claimed = await self.leases.claim_due(
                self.owner,
                limit,
                self.settings.lease_s,
                chains,
                max_suspects=int(not self._runs_suspect()),
                suspect_losses=suspect_losses_of(self.settings.max_attempts),
            )
        except DatabaseAway:
            self._may_hold_untracked_until = time.monotonic() + UNTRACKED_S
            raise
        for score in claimed:
            topic = self._topics.get(score.source)
            names: dict[str, str | int] = {
                "score_id": str(score.score_id),
                "session_id": score.session_id,
                "request_id": str(score.request_id),
                "attempt": score.attempt,
            }
            about = {"chain_id": score.chain_id, "purpose": score.purpose, "age_s": score.age_s, **names}
            trace = self.tracing.attempt(score.traceparent, score.source, topic, about)
            traced = replace(score, traceparent=trace.traceparent)
            task = asyncio.create_task(self._attempt(traced))
            self._running[score.lease_token] = _Running(traced, trace, {**trace.names, **names}, task)
        return len(claimed)

    async def _attempt(self, claimed: ClaimedScore) -> None:
        """Run one attempt from claim to end. The only place that survives an unforeseen error."""
        running = self._running[claimed.lease_token]

        def free_slot() -> None:
            running.is_judging = False
            self._claim_again()

        try:
            try:
                with running.trace.current():
                    finished = await self.scorer.attempt(claimed, on_judged=free_slot)
            except LeaseLost:
                raise
            except Exception as error:  # noqa: BLE001 - the outermost loop of the worker
                # An unforeseen error's message may quote session content, so only type and place are
                # logged.
                frames = traceback.extract_tb(error.__traceback__)[-4:]
                place = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames]
                log.error("attempt.broke", error=type(error).__name__, place=place, **running.names)
                free_slot()
                spent_s = time.monotonic() - running.started
                finished = await self.scorer.end_broken(claimed, type(error).__name__, spent_s)
        except LeaseLost:
            finished = Finished("lease_lost")
        except asyncio.CancelledError:
            if not running.has_lost_its_lease:
                raise
            finished = Finished("lease_lost")
        finally:
            del self._running[claimed.lease_token]
            self._claim_again()
        self._finish(running, finished)

    def _claim_again(self) -> None:
        if self._waits_for_an_end:
            self._database.notify_locally("scores")

    def _finish(self, running: _Running, finished: Finished) -> None:
        """Count an attempt and write the canonical log line; docs/operations.md lists the fields."""
        outcome, fields = finished.outcome, finished.fields
        duration_s = time.monotonic() - running.started
        if outcome == "lease_lost":
            self.metrics.leases_lost.inc()
        self.metrics.attempts.labels(outcome).inc()
        self.metrics.attempt_duration.observe(duration_s)
        names = running.names | fields
        log.info("attempt.finished", **names, outcome=outcome, duration_s=round(duration_s, 3))
        running.trace.end(outcome, fields.get("error_kind"))

    async def keep_leases(self) -> None:
        """
        Renew the leases for what runs; cancel attempts whose lease is lost.

        Also asks if nothing runs, because only an answer shows that workers can renew. An attempt that only
        stores the end is not cancelled. The write itself finds out that the lease is lost; and if the end is
        already committed and only the reply is missing, the score is complete.
        """
        before = list(self._running.values())
        held, locked = await self.leases.keep([r.claimed for r in before], self.settings.lease_s)
        self._takeover_guard.renewed(time.monotonic())
        self._locked = [r.claimed for r in before if r.claimed.lease_token in locked]
        (self._has_locked.set if self._locked else self._has_locked.clear)()
        for running in before:
            is_lost = running.claimed.lease_token not in held
            if is_lost and running.is_judging and not running.task.done():
                running.has_lost_its_lease = True
                running.task.cancel()

    async def keep_locked_leases(self) -> None:
        """
        Loop for ever: renew the leases that the last renewal passed over.

        Raises:
            DatabaseRefuses: See `Patience`.
        """
        patience = self._database.patience()
        while True:
            await self._has_locked.wait()
            began = time.monotonic()
            with patience:
                await self.leases.keep_locked(self._locked, self.settings.lease_s)
                self._has_locked.clear()
            # No pause after a lock timeout: another worker could take the score back in it.
            await asyncio.sleep(began + RETRY_MIN_S - time.monotonic())

    async def take_back_expired(self) -> None:
        """Take scores back from workers that stopped renewing; see `TakeoverGuard`."""
        lost = await self.leases.take_back_expired(
            self.settings.max_attempts,
            self.settings.deadline_s,
            may_take=lambda: self._takeover_guard.is_settled(time.monotonic()),
            running=self._running.keys(),
        )
        for score in lost:
            status = score["status"]
            self.metrics.taken_back.labels(status).inc()
            if status != "pending":
                chain = self.metrics.chain(score["chain_id"])
                self.metrics.scores.labels(status, score["error_kind"], chain).inc()
            log.warning("score.taken_back", score_id=str(score["score_id"]), status=status)

    async def announce_names(self) -> None:
        """Announce this worker's criteria and chains; fail scores whose names no worker has announced."""
        await announce(self.leases.inbox)
        self._announced.renewed(time.monotonic())
        if not self._announced.is_settled(time.monotonic()):
            return
        for score in await fail_unknown(self.leases.inbox, self.settings.unknown_criteria_grace_s):
            chain, error_kind = self.metrics.chain(score["chain_id"]), score["error_kind"]
            self.metrics.scores.labels(score["status"], error_kind, chain).inc()
            log.warning("score.unknown_to_workers", score_id=str(score["score_id"]), error_kind=error_kind)

    async def refresh_limits(self) -> None:
        """Read pauses, open circuits, waits that providers asked for, and spent budgets."""
        with contextlib.suppress(DatabaseAway):  # the limits known so far stay in force
            await self.limits.refresh()
        for provider, kind in self.limits.open_circuits().items():
            for why in CIRCUIT_KINDS:
                self.metrics.circuit_open.labels(provider, why).set(kind == why)
        shares: dict[tuple[str, str], float] = {}
        for (scope, chain_id), share in self.limits.budget_shares().items():
            label = (scope, self.metrics.chain(chain_id) if scope == "chain" else "")
            shares[label] = max(share, shares.get(label, share))
        for (scope, chain), spent in shares.items():
            self.metrics.budget_spent.labels(scope, chain).set(spent)

    async def read_gauges(self) -> None:
        """Export queue depth and age."""
        try:
            counts, due, oldest_s = await open_scores(self._database, await self.limits.refreshed_standings())
        except DatabaseAway:
            self.metrics.database_up.set(0)
            return
        self.metrics.database_up.set(1)
        for status in ("pending", "in_progress"):
            self.metrics.queue.labels(status).set(counts[status])
        for hold in HOLDS:
            self.metrics.queue_due.labels(hold).set(due.get(hold, 0))
        self.metrics.queue_age.set(oldest_s)

    async def _drain(self, keepers: list[asyncio.Task[None]]) -> None:
        """
        Let attempts finish, then put the others back: pending, due now, no attempt burned.

        If a loop dies meanwhile, the others are put back at once and the loop's error is raised.
        """
        tasks = [r.task for r in self._running.values()]
        if tasks:
            timeout_s = self.settings.drain_timeout_s
            log.info("worker.draining", running=len(tasks), timeout_s=timeout_s)
            ends: list[asyncio.Future[Any]] = [asyncio.gather(*tasks, return_exceptions=True), *keepers]
            await asyncio.wait(ends, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        left = list(self._running.values())
        await _cancelled([r.task for r in left])
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                for running in left:
                    with contextlib.suppress(LeaseLost):
                        await self.leases.put_back(
                            running.claimed, due_s=0, waiting_reason=None, burns=False, spent_s=0
                        )
                        self._finish(running, Finished("released"))
        except TimeoutError:
            log.warning("worker.not_released", running=len(left), effect="they expire with their leases")
        for died in (k for k in keepers if k.done()):
            died.result()


async def _first_to_end(tasks: Sequence[asyncio.Task[Any]], timeout_s: float | None = None) -> None:
    """Wait until one task ends, or for `timeout_s`. Raises the task's error."""
    done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


async def _cancelled(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait for them for a limited time."""
    # While the database is away, a task may be unable to store the last turn.
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=RELEASE_TIMEOUT_S)
