"""
Decide about a request for a score over HTTP.

A caller waits for the response, so nothing is deferred: a request that cannot be met now is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID, uuid4

from tarsy_scoring.queue.admission import (
    Decision,
    Policy,
    Request,
    SessionState,
    has_same_criteria,
    wanted_reference,
)

Outcome = Literal["new", "running", "completed", "busy", "busy_otherwise"]


@dataclass(frozen=True, slots=True)
class Answer:
    """
    The decision about a request over HTTP.

    Args:
        outcome: `new`: a score was made. `running`, `completed`: the open score, or the latest completed one,
            answers the request. `busy`: a new score was demanded while one is open. `busy_otherwise`: the
            open score is under other criteria. The last two change nothing.
        score_id: The score that the outcome is about.
        decision: What to store; None if nothing changes.
        row: The new score as it was stored.
    """

    outcome: Outcome
    score_id: UUID
    decision: Decision | None = None
    row: Mapping[str, Any] | None = None


def decide(request: Request, state: SessionState, policy: Policy) -> Answer:
    """
    Decide about a request over HTTP.

    If the request names criteria, an existing score answers it only under the present hash of these criteria.
    A request that says nothing of references is answered by a score with or without one.

    Args:
        state: Of the request's session, whose row is locked.
    """
    name, wanted_hash = policy.resolve_criteria(state.chain_id, request.criteria)
    if state.open is not None:
        running = state.open.score_id
        if request.criteria is not None and not has_same_criteria(state.open, name, wanted_hash):
            return Answer("busy_otherwise", running)
        if request.force:
            return Answer("busy", running)
        return Answer("running", running, Decision("in_progress", running))
    completed = state.latest_completed
    if request.criteria is not None:
        completed = _latest_under(state, wanted_hash)
    if completed is not None and not request.force:
        return Answer("completed", completed, Decision("already_scored", completed))
    new = uuid4()
    reference_id = wanted_reference(request, state)
    return Answer(
        "new", new, Decision("accepted", new, state.chain_id, name, wanted_hash, reference_id=reference_id)
    )


def _latest_under(state: SessionState, criteria_hash: str | None) -> UUID | None:
    """The latest completed score under criteria with this hash."""
    scores = [found for (hash_, _), found in state.completed.items() if hash_ == criteria_hash]
    return scores[-1] if scores else None
