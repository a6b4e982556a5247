"""
Decides whether a judge may be called now and what a call reserves: circuit, rate and budget rules.

All times come from the database's clock, as arguments. `fleet` locks and reads the rows that a decision
needs and writes the decision back.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from tarsy_scoring.config.chains import ProviderSettings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import WaitFor, WaitingFor
from tarsy_scoring.limits.budgets import DayBudget, exact_usd, state_of_budget

Kind = Literal["circuit", "key", "quota", "rejected"]

FAILURES_TO_OPEN = 5
REJECTED_SCORES_TO_OPEN, REJECTED_SCORES_KEPT = 3, 10
COOL_DOWN_S, MOST_COOL_DOWN_S = 30.0, 300.0
PROBE_DUE_S = 30.0  # longest wait for a running probe, which may answer long before the timeout
WINDOW = timedelta(seconds=60)
LONGEST_BLOCK_S = 3600.0  # caps a nonsensical Retry-After header
SHORTEST_DUE_S = 0.05
NEVER = datetime.fromtimestamp(0, UTC)
NO_SCORE = UUID(int=0)
NEW_BUDGET = "the next UTC day has a new budget"
FREED_DUE_S = 30.0  # wait for running calls, which may cost less than they reserve

# --- records -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """
    One HTTP call about to be made.

    Args:
        tokens: Estimated input plus reserved output.
        most_usd: Highest possible cost; None where prices are unknown.
    """

    provider: str
    chain_id: str | None
    score_id: UUID
    tokens: int
    most_usd: float | None


@dataclass(frozen=True, slots=True)
class Permit:
    """Permission for one call, with the reservations that hold until it is settled."""

    permit_id: UUID
    call: Call
    is_probe: bool = False
    is_counted: bool = False
    is_charged: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """
    A call's result.

    Args:
        failed: Counts towards opening the circuit: 5xx, timeout, unreachable.
        is_refused: A 429 or a refused prompt. It leaves the failure count unchanged.
        is_rejected: The endpoint rejected the request, for `reason`. Three scores open the circuit.
        is_trial: The call was a trial, see `JudgeClient.ask`. An answer to it is none to a score.
        opens: The key or a trial was rejected, or the quota is used up: the circuit opens at once.
        blocked_s: Wait in seconds that the provider asked for.
        tokens: Tokens used; None if unknown, and the estimate stays counted.
        cost_usd: Cost; None if unknown, and the reservation stays charged at the maximum.
        reason: A few words for people, without text from the provider.
        estimated_tokens, read_tokens: Prompt tokens as estimated here and as reported by the provider.
    """

    failed: bool = False
    is_refused: bool = False
    is_rejected: bool = False
    is_trial: bool = False
    opens: Literal["key", "quota", "rejected"] | None = None
    blocked_s: float | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    reason: str = ""
    estimated_tokens: int | None = None
    read_tokens: int | None = None

    @property
    def answers_score(self) -> bool:
        """Whether the call was answered, and was no trial."""
        return not (self.failed or self.is_refused or self.opens or self.is_trial)


@dataclass(frozen=True, slots=True)
class Pause:
    """Pauses a chain, a provider, a provider for one chain, or everything (both None)."""

    chain: str | None
    provider: str | None
    since: datetime
    by: str
    reason: str | None

    def covers(self, chain_id: str | None, provider: str | None) -> bool:
        """Whether it stops `provider` for this chain; `provider` None asks about the chain as a whole."""
        return self.chain in (None, chain_id) and self.provider in (None, provider)

    def __str__(self) -> str:
        named = {"chain": self.chain, "provider": self.provider}
        what = (
            ", ".join(f"{kind} {name!r}" for kind, name in named.items() if name is not None) or "everything"
        )
        why = f" ({self.reason})" if self.reason else ""
        return f"{what}: paused since {self.since.astimezone(UTC):%Y-%m-%d %H:%M} UTC by {self.by}{why}"


@dataclass(frozen=True, slots=True)
class Standing:
    """
    Whether a chain's scores may be claimed now.

    Args:
        reason: What holds the chain up; None: nothing does.
        may_probe: One score at a time may try whether a provider has recovered.
        text: The reason in words.
    """

    reason: WaitingFor | None = None
    may_probe: bool = False
    text: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Standings:
    """
    Every chain's standing at one moment.

    Args:
        by_chain: Chains with their own standing; '' stands for scores without a chain.
        others: All other chains' standing.
    """

    by_chain: Mapping[str, Standing]
    others: Standing

    def of(self, chain_id: str | None) -> Standing:
        return self.by_chain.get(chain_id or "", self.others)

    def hold(self, chain_id: str | None) -> tuple[WaitingFor, str] | None:
        """
        Why a pending score in this chain waits, as a word and in words; None if nothing holds the chain up.
        """
        standing = self.of(chain_id)
        return (standing.reason, standing.text) if standing.reason is not None else None


# --- decisions -----------------------------------------------------------------------------------------

_REFUSALS: Mapping[Kind, str] = {
    "circuit": "it failed too often in a row",
    "key": "its key is rejected, check the key of the provider",
    "quota": "its quota is used up, pay or raise it at the provider",
    "rejected": "it rejects every request, check the account and the provider's settings",
}


@dataclass(frozen=True, slots=True)
class ProviderState:
    """
    A provider's shared state. The circuit is closed while `kind` is None.

    `rejected_scores` are the last ones whose requests were rejected for `reason`, since a score was answered.
    `token_factor` belongs to the model `token_model`, which may differ from the model configured now. `read_at`
    is when the state was read or locked, by the database's clock.
    """

    provider: str
    read_at: datetime = NEVER
    token_factor: float = 1.0
    token_model: str | None = None
    failed_calls: tuple[UUID, ...] = ()
    rejected_scores: tuple[UUID, ...] = ()
    kind: Kind | None = None
    open_until: datetime | None = None
    cool_down_s: float = 0.0
    reason: str = ""
    probe_id: UUID | None = None
    probe_until: datetime | None = None
    blocked_until: datetime | None = None

    @classmethod
    def of(cls, row: Any) -> "ProviderState":
        """Build it from a row."""
        columns = {name: row[name] for name in cls.__dataclass_fields__}
        return cls(**columns | {name: tuple(columns[name]) for name in ("failed_calls", "rejected_scores")})

    def shut_for_s(self, now: datetime) -> float:
        """Seconds until the circuit admits a probe; 0 if it is closed or half open."""
        return max(_seconds(self.open_until, now), _seconds(self.probe_until, now))

    def blocked_for_s(self, now: datetime) -> float:
        """Seconds left to wait, as the provider asked."""
        return _seconds(self.blocked_until, now)


def refusal_of(state: ProviderState, now: datetime) -> WaitFor | None:
    """Reason why the provider must not be called now; None if a call or a probe may be made."""
    if state.kind is not None and (shut_s := state.shut_for_s(now)) > 0:
        due_s = shut_s if _seconds(state.open_until, now) > 0 else min(shut_s, PROBE_DUE_S)
        last = f" (last: {state.reason})" if state.reason else ""
        return WaitFor(
            f"the provider {state.provider!r} is not called: {_REFUSALS[state.kind]}{last}; "
            "single calls probe whether it has recovered",
            max(due_s, SHORTEST_DUE_S),
            state.kind,
        )
    if (blocked_s := state.blocked_for_s(now)) > 0:
        said = f"the provider {state.provider!r} asked us to wait"
        return WaitFor(said, max(blocked_s, SHORTEST_DUE_S), "rate_limit")
    return None


def state_after(
    state: ProviderState, call_id: UUID, result: Result, now: datetime, score_id: UUID = NO_SCORE
) -> ProviderState:
    """
    Return the provider's state after a call. Applying the same call twice changes nothing more.

    While the circuit is open only the probe counts, because other calls began before it opened. A refused
    probe makes way for the next one. Only an answer closes the circuit or ends a failure series.
    """
    state = _blocked(state, result, now)
    is_probe = state.probe_id == call_id
    if state.kind is not None and not is_probe:
        return state
    if result.is_refused and not result.opens:
        return _refused(state, result, now, score_id)
    closed = _closed(state, result)
    if not (result.failed or result.opens):
        return closed
    failed = tuple(dict.fromkeys((*state.failed_calls, call_id)))
    counted = replace(closed, failed_calls=failed[-FAILURES_TO_OPEN:], reason=result.reason)
    if is_probe:
        return _opened(counted, result, now, min(2 * state.cool_down_s, MOST_COOL_DOWN_S))
    if result.opens or len(failed) >= FAILURES_TO_OPEN:
        return _opened(counted, result, now, COOL_DOWN_S)
    return counted


def _closed(state: ProviderState, result: Result) -> ProviderState:
    """The state with a closed circuit. An answer to a trial leaves the rejections counted."""
    own = (state.provider, state.read_at, state.token_factor, state.token_model)
    closed = ProviderState(*own, blocked_until=state.blocked_until)
    if not result.is_trial:
        return closed
    return replace(closed, rejected_scores=state.rejected_scores, reason=state.reason)


def _refused(state: ProviderState, result: Result, now: datetime, score_id: UUID) -> ProviderState:
    """
    The state after a refusal. If the score was not rejected before, it counts: it may open the circuit, and
    leaves it open. Otherwise the next call may probe, which is the score's trial after a rejection.
    """
    state = replace(state, probe_id=None, probe_until=None)
    known = state.rejected_scores if result.reason == state.reason else ()
    if not result.is_rejected or score_id in known:
        return state
    scores = (*known, score_id)[-REJECTED_SCORES_KEPT:]
    counted = replace(state, rejected_scores=scores, reason=result.reason)
    if state.kind == "rejected":
        return _opened(counted, result, now, min(2 * state.cool_down_s, MOST_COOL_DOWN_S))
    opens = state.kind is None and len(scores) >= REJECTED_SCORES_TO_OPEN
    return _opened(counted, result, now, COOL_DOWN_S) if opens else counted


def _blocked(state: ProviderState, result: Result, now: datetime) -> ProviderState:
    """The state with the pause that the provider asked for, if it did."""
    if not result.blocked_s:
        return state
    until = now + timedelta(seconds=min(result.blocked_s, LONGEST_BLOCK_S))
    return replace(state, blocked_until=max(state.blocked_until or until, until))


def _opened(state: ProviderState, result: Result, now: datetime, cool_down_s: float) -> ProviderState:
    open_until = now + timedelta(seconds=cool_down_s)
    kind = result.opens or ("rejected" if result.is_rejected else "circuit")
    return replace(state, kind=kind, open_until=open_until, cool_down_s=cool_down_s)


@dataclass(slots=True)
class Window:
    """A provider's calls in the last minute. `calls` lists them oldest first, and only near the limit."""

    limits: ProviderSettings
    requests: int
    tokens: int
    calls: list[tuple[datetime, int]] = field(default_factory=list)

    def has_room(self, tokens: int) -> bool:
        """Whether one more call this large fits the limits."""
        # A call larger than the whole limit waits for an empty window. Otherwise it would wait for ever.
        most = self.limits.tokens_per_minute
        return self.holds(self.requests + 1, self.tokens + (tokens if most is None else min(tokens, most)))

    def holds(self, requests: int, tokens: int) -> bool:
        """Whether this many requests and tokens fit the limits."""
        most_requests, most_tokens = self.limits.requests_per_minute, self.limits.tokens_per_minute
        return requests <= (most_requests or requests) and tokens <= (most_tokens or tokens)

    def free_at(self, tokens: int) -> datetime:
        """When a call this large will fit. Call it only when there is no room now."""
        left = replace(self, calls=[])
        last = max(called_at for called_at, _ in self.calls)
        for called_at, gone in self.calls:
            left.requests, left.tokens = left.requests - 1, left.tokens - gone
            if left.has_room(tokens):
                last = called_at
                break
        return last + WINDOW

    def add(self, tokens: int, at: datetime) -> None:
        """Count an admitted call; `at` is later than every call counted before."""
        self.requests, self.tokens = self.requests + 1, self.tokens + tokens
        self.calls.append((at, tokens))


@dataclass(slots=True)
class LockedState:
    """
    Rows that a transaction has locked, and rows it will write. Calls are decided one by one.

    `as_locked` holds the providers as read, `states` the providers after the decisions. `budgets` are keyed
    by scope and chain. `full_until` names windows that have no room for any call. `calls` and `charges` are
    rows to write.
    """

    settings: Settings
    as_locked: Mapping[str, ProviderState] = field(default_factory=dict)
    states: dict[str, ProviderState] = field(default_factory=dict)
    windows: dict[str, Window] = field(default_factory=dict)
    budgets: dict[tuple[str, str], DayBudget] = field(default_factory=dict)
    full_until: dict[str, datetime] = field(default_factory=dict)
    calls: list[tuple[UUID, str, datetime, int]] = field(default_factory=list)
    charges: list[tuple[UUID, date, str, str, UUID, Decimal]] = field(default_factory=list)

    def changed(self) -> list[ProviderState]:
        """Providers whose state changed since they were locked."""
        return [state for name, state in self.states.items() if state != self.as_locked[name]]

    def decide(self, permit: Permit) -> Permit | WaitFor:
        """Admit the call and reserve rate and money for it, or return the reason for refusing it."""
        state = self.states.get(permit.call.provider)
        if state is not None and (refusal := refusal_of(state, state.read_at)):
            return refusal
        refusal = self._over_rate(permit.call) if permit.is_counted else None
        refusal = refusal or (self._over_budget(permit) if permit.is_charged else None)
        return refusal or self._admit(permit)

    def _over_rate(self, call: Call) -> WaitFor | None:
        """The refusal if the call exceeds the rate limits."""
        window = self.windows[call.provider]
        if window.has_room(call.tokens):
            return None
        # No call fits into less room than a full reply takes, so the claim need not try before.
        least = window.limits.max_reply_tokens
        if not window.has_room(least):
            self.full_until[call.provider] = window.free_at(least)
        due_s = _seconds(window.free_at(call.tokens), self.states[call.provider].read_at)
        return WaitFor(
            f"the provider {call.provider!r} has reached its requests_per_minute or tokens_per_minute",
            max(due_s, SHORTEST_DUE_S),
            "rate_limit",
        )

    def _over_budget(self, permit: Permit) -> WaitFor | None:
        """The refusal if some budget has less left than the call reserves."""
        usd = exact_usd(permit.call.most_usd or 0.0)
        budgets = self._budgets_of(permit.call)
        lacking = next((p for p in budgets if p.left < usd), None)
        if lacking is None:
            return None
        if all(p.may_have_later(usd) for p in budgets):
            due_s, hope = FREED_DUE_S * random.uniform(0.8, 1.2), "running calls may cost less"  # noqa: S311 - jitter
        else:
            due_s, hope = lacking.day_left_s + random.uniform(1, 60), NEW_BUDGET  # noqa: S311
        state = state_of_budget(lacking.whose, lacking.left, lacking.limit)
        return WaitFor(f"{state}, and the call reserves {usd:.4f} USD: {hope}", due_s, "budget")

    def _admit(self, permit: Permit) -> Permit:
        call, state = permit.call, self.states.get(permit.call.provider)
        is_probe = state is not None and state.kind is not None
        if state is not None:
            now = state.read_at
            if is_probe:
                until = now + timedelta(seconds=self.settings.config.providers[call.provider].timeout_s)
                state = replace(state, probe_id=permit.permit_id, probe_until=until)
            self.states[call.provider] = state
            if permit.is_counted:
                self.windows[call.provider].add(call.tokens, now)
                self.calls.append((permit.permit_id, call.provider, now, call.tokens))
        if permit.is_charged:
            usd = exact_usd(call.most_usd or 0.0)
            budgets = self._budgets_of(call)
            for budget in budgets:
                budget.added += usd
            self.charges.append(
                (permit.permit_id, budgets[0].day, call.chain_id or "", call.provider, call.score_id, usd)
            )
        return replace(permit, is_probe=is_probe)

    def _budgets_of(self, call: Call) -> tuple[DayBudget, DayBudget]:
        return self.budgets["all", ""], self.budgets["chain", call.chain_id or ""]


def _seconds(until: datetime | None, now: datetime) -> float:
    """Seconds until `until`; 0 if it has passed or is None."""
    return max(0.0, (until - now).total_seconds()) if until is not None else 0.0
