"""The drift report: findings, where a chain's drift detection stands, and anchors that lack judgements."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field

from tarsy_scoring.postgres.database import Database
from tarsy_scoring.queue.admission import Policy
from tarsy_scoring.studies import anchors, findings
from tarsy_scoring.studies.anchors import Anchor, AnchorStanding, State
from tarsy_scoring.studies.detection import (
    DAYS_TO_WAIT,
    FEWEST_SESSIONS,
    RECENT,
    Cause,
    Look,
    anchor_changes,
    due_look,
)
from tarsy_scoring.studies.findings import MOST_SHOWN, Finding, Situation

MOST_ANCHORS_SHOWN = 100
CAUSES: Mapping[Cause | None, str] = {
    "judge": "the judge changed",
    "agents": "the agents changed",
    "both": "judge and agents changed",
    "none": "no change is shown",
    None: "undecided",
}
STATES: Mapping[State, str] = {
    "judged": "judged by the current judge",
    "under_way": "under way",
    "lacking": "not judged yet by the current judge",
    "given_up": "given up after several tries",
    "gone": "gone: the source no longer has it",
    "no_judge": "its chain has no recent scores with a fingerprint under its criteria",
}


@dataclass(frozen=True, slots=True)
class ChainStanding:
    """A chain's current judge, and what the next look waits for."""

    chain_id: str
    criteria: str
    judge_fingerprint: Annotated[
        str | None, Field(description="The current judge; null: too few scores to tell.")
    ]
    judges_since: Annotated[datetime | None, Field(description="Null: as far back as scores were read.")]
    old_fingerprint: Annotated[str | None, Field(description="The judge before; null: there was none.")]
    scores: Annotated[int, Field(description="By the current judge, as far back as scores were read.")]
    anchors: Annotated[int, Field(description="Anchors judged by the judge before and by the current one.")]
    outstanding: Annotated[int, Field(description="Anchors that the current judge is still to judge.")]
    meaning: Annotated[str, Field(description="The state in words.")]


@dataclass(frozen=True, slots=True)
class DriftReport:
    """The drift report."""

    findings: Annotated[list[Finding], Field(description="Newest first.")]
    chain: Annotated[
        ChainStanding | None, Field(description="The requested chain; null: none was requested.")
    ]
    anchors: Annotated[dict[State, int], Field(description="Number of anchors by state.")]
    anchors_not_judged: Annotated[list[Anchor], Field(description="At most 100.")]


async def read_report(
    database: Database,
    policy: Policy,
    chain: str | None = None,
    criteria: str | None = None,
    *,
    since: datetime | None = None,
    limit: int = MOST_SHOWN,
) -> DriftReport:
    """
    Read the drift report.

    Args:
        chain: None: findings for all chains, without any chain's state.
        criteria: Only findings under criteria with this name.
        since: Only findings made since then.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    found = await findings.read_findings(database, chain, criteria, since=since, limit=limit)
    standing = await anchors.standing(database, policy)
    mine = [a for a in standing.anchors if chain is None or a.chain_id == chain]
    stands = None if chain is None else await _chain_standing(database, policy, chain, standing)
    lacking = [a for a in mine if a.state != "judged"]
    return DriftReport(found, stands, dict(Counter(a.state for a in mine)), lacking[:MOST_ANCHORS_SHOWN])


async def _chain_standing(
    database: Database, policy: Policy, chain: str, standing: AnchorStanding
) -> ChainStanding:
    criteria = policy.chain(chain).criteria
    judgements = await anchors.judgements(database)
    found = await findings.situation(database, chain, criteria, standing, judgements)
    if found is None:
        meaning = (
            f"Fewer than {RECENT} scores under {criteria} have a fingerprint: too few to tell who judges."
        )
        return ChainStanding(chain, criteria, None, None, None, 0, 0, 0, meaning)
    now = datetime.now(UTC)
    earlier = await findings.read_findings(database, chain, criteria)
    return standing_of(found, findings.looks_made(earlier, found.tenure, now), now)


def standing_of(found: Situation, looked: Collection[Look], now: datetime) -> ChainStanding:
    """
    Describe where a chain's drift detection stands, also in words.

    Args:
        looked: Looks made at the change that brought the current judge.
    """
    tenure, both = found.tenure, 0
    if tenure.old is not None:
        both = len(anchor_changes(found.judgements, tenure.old, tenure.fingerprint)[0])
    return ChainStanding(
        found.chain_id,
        found.criteria,
        tenure.fingerprint,
        tenure.since if tenure.old is not None else None,
        tenure.old,
        len(tenure.scores),
        both,
        found.outstanding,
        _waits_for(found, both, looked, now),
    )


def _waits_for(found: Situation, both: int, looked: Collection[Look], now: datetime) -> str:
    """Say which look comes next; `both` counts anchors with both judges."""
    tenure = found.tenure
    if tenure.old is None:
        return "One judge gave the recent scores. A change of the agents is looked for once a day."
    text = f"Another judge took over at {tenure.since:%Y-%m-%d %H:%M} UTC. "
    text += f"{both} anchors were judged by both judges"
    text += f", {found.outstanding} are still to be." if found.outstanding else "."
    if "sessions" not in looked and due_look(tenure, found.outstanding, looked, now) is None:
        text += (
            f" The scores are compared when all anchors are judged and the new judge gave {FEWEST_SESSIONS} scores "
            f"(there are {len(tenure.scores)}), and after {DAYS_TO_WAIT} days in any case."
        )
    if not both and not found.outstanding:
        text += " Without anchors that both judged, its part cannot be separated from the agents'."
    return text
