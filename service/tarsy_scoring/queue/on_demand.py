"""
What somebody who asks for a score over HTTP is answered: a pure decision, made while the session's row is locked.

Here a person waits for the answer, so nothing is deferred: what cannot be done now is refused.
"""

from dataclasses import dataclass
from typing import Literal
from uuid import UUID, uuid4

from tarsy_scoring.queue.admission import Decision, NewScore, Policy, Request, SessionState, is_same

Outcome = Literal["new", "running", "completed", "busy", "busy_otherwise"]


@dataclass(frozen=True, slots=True)
class Answer:
    """
    What becomes of a request for a score.

    Args:
        outcome: `new`: a score was made; `running`: the open one answers it; `completed`: the latest completed one
            does; `busy`: another one was to be made while one runs; `busy_otherwise`: the one that runs is under
            other criteria than those asked for. The last two change nothing.
        score_id: The score that it speaks of.
        decision: What to write; None where nothing is to be written.
    """

    outcome: Outcome
    score_id: UUID
    decision: Decision | None = None


def decide(request: Request, state: SessionState, policy: Policy) -> Answer:
    """
    Decide about a request made over HTTP.

    Where it names criteria, a running or completed score counts only under these, as they read now.

    Args:
        state: Of the request's session, under its lock.
    """
    name, wanted_hash = policy.bound(state.chain_id, request.criteria)
    if state.open is not None:
        running = state.open.score_id
        if request.criteria is not None and not is_same(state.open, name, wanted_hash):
            return Answer("busy_otherwise", running)
        if request.force:
            return Answer("busy", running)
        return Answer("running", running, Decision("in_progress", running))
    completed = state.latest_completed
    if request.criteria is not None:
        completed = state.completed.get(wanted_hash or "")
    if completed is not None and not request.force:
        return Answer("completed", completed, Decision("already_scored", completed))
    new = NewScore(uuid4(), request, state.chain_id, name, wanted_hash)
    return Answer("new", new.score_id, Decision("accepted", new.score_id, new))
