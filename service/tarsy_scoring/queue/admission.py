"""
Decide about requests for scores.

The inbox locks a session, reads its `SessionState`, calls `admit`, or `decide` for a request over HTTP, and
writes the decision. This module reads no clock, no database and no network.
"""

import hashlib
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import IntEnum
from typing import Literal

from tarsy_scoring.config.chains import ChainSettings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ScoringError
from tarsy_scoring.events import SOURCE_COMPLETED, Purpose
from tarsy_scoring.references.model import Reference
from tarsy_scoring.timeline.clean.masking import Masking, mask_labels, mask_secrets

Disposition = Literal[
    "accepted",
    "in_progress",
    "deferred",
    "superseded",
    "already_scored",
    "disabled",
    "status_not_scored",
    "sampled_out",
    "stale",
]
"""
The recorded decision about a request.

`accepted`: a pending score was made for it. `in_progress`: the open score of the session answers it.
`already_scored`: a completed score answers it. `deferred`: it waits for the open score of its session, and is
promoted when that ends. `superseded`: a newer request was deferred in its place. The rest are reasons not to
score an automatic request. A deferred request leaves that state to `accepted`, `already_scored` or
`superseded`, an automatic one also to a reason; all others are final, with two exceptions. The first claim
may turn `accepted` into one of the reasons once the chain is known, unless another request has joined the
score that is not automatic. An automatic request is deferred if the score that it joined fails because no
worker knows the criteria of the score's own request.
"""


class Priority(IntEnum):
    """Order of claims; the smallest first."""

    PEOPLE = 0
    AUTOMATIC = 1
    BULK = 2


@dataclass(frozen=True, slots=True)
class Request:
    """
    A wish to have a session scored.

    Args:
        request_id: Identity of the request; a repeated request has the same id.
        session_status: Considered for `session-completed` only.
        is_stale: Decided from the age of the Kafka record.
        purpose: With another purpose than `production` the score is made beside the session's own score: it
            neither waits for that score nor delays it.
        traceparent: Trace context of the caller.
        reference: What to judge against. It is stored with the session; `force` is set with it.
        use_reference: Whether to judge against the newest stored reference of the session, if there is one;
            `force` is set if not. Automatic requests, and scores for other purposes, never do.
        is_reference_refused: It gave a reference, which the configuration takes from no event.
    """

    request_id: uuid.UUID
    session_id: str
    source: str
    event_id: str | None = None
    chain_id: str | None = None
    alert_type: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    session_status: str | None = None
    completed_at: datetime | None = None
    requested_by: str = "auto"
    force: bool = False
    criteria: str | None = None
    reason: str | None = None
    priority: Priority = Priority.AUTOMATIC
    is_stale: bool = False
    purpose: Purpose = "production"
    traceparent: str | None = None
    reference: Reference | None = None
    use_reference: bool = True
    is_reference_refused: bool = False

    @property
    def is_automatic(self) -> bool:
        """Whether it comes from a `session-completed` event, not from a person."""
        return self.source == SOURCE_COMPLETED

    def masked(self, masking: Masking) -> "Request":
        """The request without secrets in what the sender wrote. Hostile labels take a second of CPU time."""
        alert_type, reason = (text and mask_secrets(text, masking) for text in (self.alert_type, self.reason))
        return replace(self, alert_type=alert_type, reason=reason, labels=mask_labels(self.labels, masking))


@dataclass(frozen=True, slots=True)
class OpenScore:
    """The pending or in-progress production score of a session."""

    score_id: uuid.UUID
    criteria: str | None
    criteria_hash: str | None
    reference_id: uuid.UUID | None = None


@dataclass(slots=True)
class SessionState:
    """
    The stored state of a session; `admit` updates it, so that later requests of a batch see earlier ones.

    Args:
        status: As events and the source gave it.
        completed: Latest completed production score by criteria hash and reference; the latest of all comes
            last.
        deferred: The deferred request, of which a session has at most one.
        reference_id: The newest reference of the session.
    """

    chain_id: str | None = None
    status: str | None = None
    open: OpenScore | None = None
    completed: dict[tuple[str, uuid.UUID | None], uuid.UUID] = field(default_factory=dict)
    deferred: uuid.UUID | None = None
    reference_id: uuid.UUID | None = None

    def latest_completed(self, criteria_hash: str | None = None) -> uuid.UUID | None:
        """The latest completed score, or the latest under criteria with this hash."""
        found = (s for (h, _), s in reversed(self.completed.items()) if criteria_hash in (None, h))
        return next(found, None)


@dataclass(frozen=True, slots=True)
class Decision:
    """
    The decision about one request.

    Args:
        score_id: The score to insert if the request is `accepted`; else the existing one that answers it.
        chain_id, criteria, criteria_hash: Of the score to insert; criteria are None until the chain is known.
        superseded: The older deferred request that this one replaces.
        reference_id: What the score to insert is judged against.
    """

    disposition: Disposition
    score_id: uuid.UUID | None = None
    chain_id: str | None = None
    criteria: str | None = None
    criteria_hash: str | None = None
    superseded: uuid.UUID | None = None
    reference_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """
    Settings by chain and hashes by criteria.

    Args:
        hashes: Current hash of all criteria by name, with the notes of `defaults`.
        hashes_of_chains: The same for each chain with a configuration of its own, with notes.
    """

    settings: Settings
    hashes: Mapping[str, str]
    hashes_of_chains: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def chains(self) -> Collection[str]:
        """Chains that the configuration names; all others have the settings of `defaults`."""
        return self.settings.config.chains.keys()

    @property
    def announce_every_s(self) -> float:
        """Interval at which a worker announces the names that it knows."""
        return min(60.0, self.settings.unknown_criteria_grace_s / 4)

    @property
    def living_s(self) -> float:
        """Age of an announcement up to which the worker counts as living."""
        return 3 * self.announce_every_s

    def chain(self, chain_id: str | None) -> ChainSettings:
        return self.settings.chain(chain_id)

    def resolve_criteria(self, chain_id: str | None, wanted: str | None) -> tuple[str | None, str | None]:
        """
        Name and hash of the criteria for a new score; (None, None) while neither the request nor a chain
        names them.

        Unknown criteria have a name and no hash. Workers that know them may start later (see `known_names`).
        """
        name = wanted or (self.chain(chain_id).criteria if chain_id is not None else None)
        return name, self.current_hash(name, chain_id)

    def current_hash(self, name: str | None, chain_id: str | None) -> str | None:
        """
        The hash that these criteria have now for a chain (None: a session without a chain); None if unknown.
        """
        return self.hashes_of_chains.get(chain_id or "", self.hashes).get(name or "")

    def is_current(self, name: str, criteria_hash: str) -> bool:
        """Whether criteria of this name have this hash now for some chain."""
        return any(
            found.get(name) == criteria_hash for found in (self.hashes, *self.hashes_of_chains.values())
        )

    def certain_rejection(self, request: Request, chain_id: str | None) -> Disposition | None:
        """
        Reason not to score an automatic request, if it holds for every chain that the session may belong to.

        An unknown chain rejects only what all chains reject. The first claim learns the chain from the source
        and then applies `rejection`.
        """
        reason = self.rejection(request, chain_id)
        if reason is not None and chain_id is None:
            chains = self.settings.config.chains
            return reason if all(self.rejection(request, c) is not None for c in chains) else None
        return reason

    def rejection(self, request: Request, chain_id: str | None) -> Disposition | None:
        """
        Reason not to score an automatic request on this chain (None: a session without a chain), if any.
        """
        chain = self.chain(chain_id)
        if not (self.settings.enabled and chain.enabled):
            return "disabled"
        if request.session_status not in chain.auto_score_statuses:
            return "status_not_scored"
        if not is_sampled(request.session_id, chain.sample_rate):
            return "sampled_out"
        return None


def is_sampled(session_id: str, rate: float) -> bool:
    """
    Whether a session belongs to the sample of this rate (0-1).

    Deterministic, and nested: a session in one sample is in every larger one.
    """
    drawn = int.from_bytes(hashlib.sha256(session_id.encode()).digest()[:8], "big")
    return drawn < rate * 2**64


def admit(request: Request, state: SessionState, policy: Policy) -> Decision:
    """
    Decide about a new request and update `state`.

    Args:
        state: Of the request's session, whose row is locked.
    """
    chain_id = request.chain_id or state.chain_id
    if request.is_automatic:
        reason = "stale" if request.is_stale else policy.certain_rejection(request, chain_id)
        if reason is not None:
            return Decision(reason)
    name, wanted_hash = policy.resolve_criteria(chain_id, request.criteria)
    if request.purpose != "production":
        return Decision("accepted", uuid.uuid4(), chain_id, name, wanted_hash)
    reference_id = wanted_reference(request, state)
    if state.open is not None:
        if request.is_automatic or _answers(state.open, policy, chain_id, name, reference_id):
            return Decision("in_progress", state.open.score_id)
        superseded, state.deferred = state.deferred, request.request_id
        return Decision("deferred", superseded=superseded)
    if not request.force:
        _, hash_now = policy.resolve_criteria(chain_id, request.criteria or policy.chain(chain_id).criteria)
        if (scored := state.completed.get((hash_now or "", reference_id))) is not None:
            return Decision("already_scored", scored)
    state.open = OpenScore(uuid.uuid4(), name, wanted_hash, reference_id)
    return Decision("accepted", state.open.score_id, chain_id, name, wanted_hash, reference_id=reference_id)


# --- over HTTP -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """
    The answer to a request over HTTP.

    Args:
        disposition: `accepted`: a score was made. `in_progress`, `already_scored`: the open score, or the
            latest completed one, answers the request.
        request_id: The request; for a repeat under a key, the first one.
        is_repeat: It was stored before, under the same key.
        text: What was sent for the first request under the key; None: not stored yet.
    """

    disposition: Disposition
    score_id: uuid.UUID
    request_id: uuid.UUID
    is_repeat: bool = False
    text: str | None = None


class ScoreUnderWay(ScoringError):
    """
    An open score prevents the requested one.

    Attributes:
        is_otherwise: It is under other criteria than those requested. Else a new score was demanded.
    """

    def __init__(self, score_id: uuid.UUID, *, is_otherwise: bool) -> None:
        super().__init__(f"the score {score_id} is under way")
        self.score_id = score_id
        self.is_otherwise = is_otherwise


def decide(request: Request, state: SessionState, policy: Policy) -> Decision:
    """
    Decide about a request over HTTP. The caller waits for the response, so nothing is deferred.

    If the request names criteria, an existing score answers it only under the present hash of these criteria.
    A request that says nothing of references is answered by a score with or without one. A trial is always a
    new score.

    Args:
        state: Of the request's session, whose row is locked.

    Raises:
        ScoreUnderWay: The request cannot be met before the open score has ended.
    """
    name, wanted_hash = policy.resolve_criteria(state.chain_id, request.criteria)
    if request.purpose != "production":
        return Decision("accepted", uuid.uuid4(), state.chain_id, name, wanted_hash)
    if (running := state.open) is not None:
        is_otherwise = request.criteria is not None and not has_same_criteria(running, name, wanted_hash)
        if is_otherwise or request.force:
            raise ScoreUnderWay(running.score_id, is_otherwise=is_otherwise)
        return Decision("in_progress", running.score_id)
    completed = state.latest_completed(None if request.criteria is None else wanted_hash or "")
    if completed is not None and not request.force:
        return Decision("already_scored", completed)
    reference_id = wanted_reference(request, state)
    return Decision("accepted", uuid.uuid4(), state.chain_id, name, wanted_hash, reference_id=reference_id)


# --- helpers -------------------------------------------------------------------------------------------


def _answers(
    score: OpenScore, policy: Policy, chain_id: str | None, name: str | None, reference_id: uuid.UUID | None
) -> bool:
    """Whether the open score has the criteria and the reference that a request wants."""
    # If the criteria of the open score are known, the session was read. A chain that is still unknown then
    # means that the session has none, so the default criteria apply.
    wanted = name or policy.chain(chain_id).criteria if score.criteria else name
    is_same = has_same_criteria(score, *policy.resolve_criteria(chain_id, wanted))
    return is_same and score.reference_id == reference_id


def wanted_reference(request: Request, state: SessionState) -> uuid.UUID | None:
    """
    The reference that the score of a request for production is judged against; updates `state` if it gives a
    new one.

    An automatic request is judged without one, so that the scores which trends are made of stay comparable.
    """
    if request.reference is not None:
        state.reference_id = request.reference.reference_id
    return state.reference_id if request.use_reference and not request.is_automatic else None


def has_same_criteria(score: OpenScore, name: str | None, wanted_hash: str | None) -> bool:
    """Whether an open score is under the wanted criteria: by hash if both hashes are known, else by name."""
    if score.criteria_hash is not None and wanted_hash is not None:
        return score.criteria_hash == wanted_hash
    return score.criteria == name
