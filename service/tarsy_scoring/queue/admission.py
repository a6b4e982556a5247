"""
What becomes of a request: pure decisions, made while the session's row is locked.

The store reads a `SessionState`, asks `admit` (or `promote` when a score has ended), and writes what
it answers. Nothing in here reads a clock, a database or the network.
"""

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Literal

from tarsy_scoring.config.settings import ChainSettings, Settings
from tarsy_scoring.events import SOURCE_COMPLETED

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
Purpose = Literal["production", "consistency", "anchor", "shadow"]


class Priority(IntEnum):
    """Who is served first."""

    PEOPLE = 0
    AUTOMATIC = 1
    BULK = 2


@dataclass(frozen=True, slots=True)
class Request:
    """
    Somebody's wish to have a session scored.

    `request_id` is a hash of its identity. `is_stale` was decided from the age of the Kafka record.
    `session_status` matters for `session-completed` alone. With another `purpose` than production it asks for
    a judgement beside the session's score, which it neither waits for nor holds up. `traceparent` is the trace
    that whoever asked is in.
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

    @property
    def is_automatic(self) -> bool:
        """Whether nobody asked for it in particular."""
        return self.source == SOURCE_COMPLETED


@dataclass(frozen=True, slots=True)
class OpenScore:
    """The pending or in-progress production score of a session."""

    score_id: uuid.UUID
    criteria: str | None
    criteria_hash: str | None


@dataclass(slots=True)
class SessionState:
    """What the store knows of a session; `admit` keeps it up to date within a batch."""

    chain_id: str | None = None
    open: OpenScore | None = None
    completed: dict[str, uuid.UUID] = field(default_factory=dict)
    """Latest completed production score by criteria hash."""
    latest_completed: uuid.UUID | None = None
    """The latest of them all."""
    deferred: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class NewScore:
    """A pending score to be made for a request; criteria are None until the chain is known."""

    score_id: uuid.UUID
    request: Request
    chain_id: str | None
    criteria: str | None
    criteria_hash: str | None


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one request; `score_id` is the score it made, or the one that answers it."""

    disposition: Disposition
    score_id: uuid.UUID | None = None
    new_score: NewScore | None = None
    superseded: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """
    The settings of a chain and the hash of a criteria, as admission needs them.

    Args:
        hashes: Current hash of every criteria by name.
    """

    settings: Settings
    hashes: Mapping[str, str]

    def chain(self, chain_id: str | None) -> ChainSettings:
        return self.settings.chain(chain_id)

    def bound(self, chain_id: str | None, wanted: str | None) -> tuple[str | None, str | None]:
        """
        Criteria and hash for a new score; (None, None) while neither the request nor a known chain names them.

        An unknown criteria has a name and no hash; the score then fails with `unknown_criteria`, which
        its asker can see, where a refused request could not be seen by anyone.
        """
        name = wanted or (self.chain(chain_id).criteria if chain_id is not None else None)
        return name, self.hashes.get(name) if name else None

    def hopeless(self, request: Request, chain_id: str | None) -> Disposition | None:
        """
        Why an automatic request is not scored, as far as can be said before its session was read.

        While the chain is not known, a request goes through if it may belong to a chain that wants it;
        the first claim, which reads the chain from the source, asks `filtered`.
        """
        why = self.filtered(request, chain_id)
        if why is not None and chain_id is None:
            chains = self.settings.config.chains
            return why if all(self.filtered(request, c) is not None for c in chains) else None
        return why

    def filtered(self, request: Request, chain_id: str | None) -> Disposition | None:
        """Why an automatic request is not scored on this chain, None being one of none; None: it is."""
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
    Whether a session belongs to the sample; the same session always falls the same way.

    A session in a sample is in every larger one. Args: rate: 0-1.
    """
    drawn = int.from_bytes(hashlib.sha256(session_id.encode()).digest()[:8], "big")
    return drawn < rate * 2**64


def admit(request: Request, state: SessionState, policy: Policy) -> Decision:
    """
    Decide about a new request and bring `state` up to date.

    Args:
        state: Of the request's session, under its lock.
    """
    chain_id = request.chain_id or state.chain_id
    if request.is_automatic:
        if request.is_stale:
            return Decision("stale")
        if (why := policy.hopeless(request, chain_id)) is not None:
            return Decision(why)
    name, wanted_hash = policy.bound(chain_id, request.criteria)
    if request.purpose != "production":
        new = NewScore(uuid.uuid4(), request, chain_id, name, wanted_hash)
        return Decision("accepted", new.score_id, new)
    if state.open is not None:
        # A running score whose criteria are bound shows what an unknown chain comes to: the defaults.
        wanted = policy.bound(chain_id, name or policy.chain(chain_id).criteria if state.open.criteria else name)
        if request.is_automatic or is_same(state.open, *wanted):
            return Decision("in_progress", state.open.score_id)
        superseded, state.deferred = state.deferred, request.request_id
        return Decision("deferred", superseded=superseded)
    if not request.force and (scored := _scored_under(state, policy, chain_id, request)) is not None:
        return Decision("already_scored", scored)
    new = NewScore(uuid.uuid4(), request, chain_id, name, wanted_hash)
    state.open = OpenScore(new.score_id, name, wanted_hash)
    return Decision("accepted", new.score_id, new)


def promote(request: Request, state: SessionState, policy: Policy) -> Decision:
    """
    Decide about the deferred request of a session whose score has just ended.

    Returns:
        `accepted` with the new score, or `already_scored` for one that was not forced and whose
        criteria have been answered meanwhile.
    """
    state.deferred = None
    return admit(request, state, policy)


def is_same(running: OpenScore, name: str | None, wanted_hash: str | None) -> bool:
    """Whether the running score is under the wanted criteria, as far as both are known."""
    if running.criteria_hash is not None and wanted_hash is not None:
        return running.criteria_hash == wanted_hash
    return running.criteria == name


def _scored_under(state: SessionState, policy: Policy, chain_id: str | None, request: Request) -> uuid.UUID | None:
    name = request.criteria or policy.chain(chain_id).criteria
    return state.completed.get(policy.hashes.get(name, ""))
