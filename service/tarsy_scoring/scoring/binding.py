"""
Decides to which chain and criteria a score belongs, once the session has been read.

The chain decides which providers see the session. So the chain that the source names counts, unless the
operator lets events choose.
"""

from dataclasses import dataclass

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.events import SOURCE_COMPLETED
from tarsy_scoring.queue.admission import Disposition, Policy, Priority, Request
from tarsy_scoring.queue.claims import ClaimedScore
from tarsy_scoring.timeline.model import Timeline


@dataclass(frozen=True, slots=True)
class Binding:
    """
    A score's chain and criteria.

    Args:
        criteria: Name.
        known_criteria: The same, unless it only follows from the chain: then None.
        is_certain: The source named the chain, and events may not name another one.
        is_news: The claimed score names other values.
        is_of_others: The source names a chain that this worker's configuration lacks.
        is_mismatch: The request named another chain than the source.
        why_not: Why the chain declines the automatic request, if only the source named the chain.
    """

    chain_id: str | None
    criteria: str
    criteria_hash: str | None
    known_criteria: str | None
    is_certain: bool
    is_news: bool
    is_of_others: bool
    is_mismatch: bool
    why_not: Disposition | None


def binding_of(claimed: ClaimedScore, timeline: Timeline, settings: Settings, policy: Policy) -> Binding:
    """Decide chain and criteria. If an event named a wrong chain, that chain's criteria go with it."""
    events_choose, found = settings.events_choose_chains, timeline.chain_id
    chain_id = _chain_of(claimed, found, events_choose=events_choose)
    is_moved = claimed.chain_id not in (None, chain_id)
    known = claimed.asked_criteria if is_moved else claimed.criteria
    criteria = known or settings.chain(chain_id).criteria
    criteria_hash = policy.hashes.get(criteria)
    named = claimed.asked_chain_id
    is_decided = claimed.criteria is not None and claimed.chain_id == chain_id  # at acceptance, or at a bind
    bound = (claimed.chain_id, claimed.criteria, claimed.criteria_hash)
    return Binding(
        chain_id=chain_id,
        criteria=criteria,
        criteria_hash=criteria_hash,
        known_criteria=known,
        is_certain=found is not None and not events_choose,
        is_news=(chain_id, criteria, criteria_hash) != bound,
        is_of_others=chain_id not in (None, claimed.chain_id) and chain_id not in policy.chains,
        is_mismatch=bool(named and found and named != found and not events_choose),
        why_not=None if is_decided else _declined(claimed, timeline, chain_id, policy),
    )


def _chain_of(claimed: ClaimedScore, found: str | None, *, events_choose: bool) -> str | None:
    return (claimed.chain_id or found) if events_choose else (found or claimed.chain_id)


def _declined(
    claimed: ClaimedScore, timeline: Timeline, chain_id: str | None, policy: Policy
) -> Disposition | None:
    if claimed.source != SOURCE_COMPLETED:
        return None
    request = Request(
        request_id=claimed.request_id,
        session_id=claimed.session_id,
        source=claimed.source,
        session_status=claimed.session_status or timeline.status,
        priority=Priority.AUTOMATIC,
    )
    return policy.rejection(request, chain_id)
