"""The drift report: findings, the state of a chain's drift detection, and anchors that lack judgements."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import Field

from tarsy_scoring.postgres.database import Database
from tarsy_scoring.queue.admission import Policy
from tarsy_scoring.statistics.agreement import Estimate
from tarsy_scoring.statistics.drift import Cause
from tarsy_scoring.studies import anchors, detection, findings
from tarsy_scoring.studies.anchors import Anchor, Standing, State
from tarsy_scoring.studies.detection import DAYS_TO_LOOK, TENURE, Look, Situation
from tarsy_scoring.studies.findings import MOST_SHOWN, Finding

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
    """The current judge of a chain, and what the next look waits for."""

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
        chain: None: findings of all chains, without the state of a chain.
        criteria: Only findings under criteria of this name.
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
    database: Database, policy: Policy, chain: str, standing: Standing
) -> ChainStanding:
    criteria = policy.chain(chain).criteria
    judgements = await anchors.judgements(database)
    found = await findings.situation(database, chain, criteria, standing, judgements, scores=findings.JUDGED)
    if found is None:
        meaning = f"It has fewer than {TENURE} scores with a fingerprint under {criteria}: too few to tell who judges."
        return ChainStanding(chain, criteria, None, None, None, 0, 0, 0, meaning)
    now = datetime.now(UTC)
    return standing_of(found, await findings.looks_made(database, found, now), now)


def standing_of(found: Situation, looked: Collection[Look], now: datetime) -> ChainStanding:
    """
    Describe the state of a chain's drift detection, also in words.

    Args:
        looked: Looks made at the change that brought the current judge.
    """
    tenure = found.tenure
    both = (
        0
        if tenure.old is None
        else detection.judged_by_both(found.judgements, tenure.old, tenure.fingerprint)
    )
    return ChainStanding(
        found.chain_id,
        found.criteria,
        tenure.fingerprint,
        tenure.since,
        tenure.old,
        len(tenure.scores),
        both,
        found.outstanding,
        _waits_for(found, both, looked, now) + _unknown(found.unknown),
    )


def _waits_for(found: Situation, both: int, looked: Collection[Look], now: datetime) -> str:
    """Say which look comes next and what it waits for; `both` is the number of anchors with both judges."""
    tenure, scores = found.tenure, len(found.tenure.scores)
    if tenure.old is None or tenure.since is None:
        return _without_change(tenure.judges, scores)
    text = f"Another judge took over at {tenure.since:%Y-%m-%d %H:%M} UTC. {both} anchors were judged by both judges"
    text += _of_other_chains(found, tenure.old, both)
    is_late = now - tenure.since >= timedelta(days=DAYS_TO_LOOK)
    if found.outstanding and not is_late:
        text += f", {found.outstanding} are still to be; the look waits for these, for at most {DAYS_TO_LOOK} days."
    else:
        text += f", {found.outstanding} are still to be." if found.outstanding else "."
        if detection.due_look(tenure, found.judgements, found.outstanding, looked, now) is not None:
            text += " A look is due and will be made within five minutes."
    enough = detection.SESSIONS_AFTER_DAYS if is_late else detection.SESSIONS_TO_LOOK
    if scores < enough and "sessions" not in looked:
        later = "" if is_late else f", or after {DAYS_TO_LOOK} days {detection.SESSIONS_AFTER_DAYS}"
        text += (
            f" The agents' part is determined once there are {enough} scores by the new judge (there are "
            f"{scores}){later}."
        )
    if not both and not found.outstanding:
        text += " Without anchors that both judged, its part cannot be separated from the agents'."
    return text


def _of_other_chains(found: Situation, old: str, both: int) -> str:
    """Say how many of the anchors with both judges are of other chains; empty: none."""
    mine = [j for j in found.judgements if j.chain_id == found.chain_id]
    own = detection.judged_by_both(mine, old, found.tenure.fingerprint)
    return f" ({own or 'none'} of this chain; {both - own} of other chains are used)" if both > own else ""


def _without_change(judges: int, scores: int) -> str:
    """Say which changes can be found while no judge has taken over from another."""
    if judges == 1:
        return "One judge gave all recent scores. A change of the agents is looked for once a day."
    return (
        f"{judges} judges gave the recent scores, and none has taken over from another: they alternate, substitute "
        "for each other, or one has just started. No change of judge can be detected. A change of the agents is looked "
        f"for once a day, in the {scores} scores of the judge that gave most of the last {TENURE}."
    )


def _unknown(scores: int) -> str:
    """A sentence about scores without a fingerprint; empty without any."""
    if not scores:
        return ""
    text = "1 score has" if scores == 1 else f"{scores:,} scores have"
    return f" Since this judge's first score {text} no fingerprint: their judge is unknown, and they are left out."


def in_points(estimate: Estimate) -> str:
    """Format a change in points with its interval."""
    if estimate.value is None:
        return "unknown"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:+.1f}, no interval"
    if estimate.low == estimate.high:
        return f"{estimate.value:+.1f}"
    return f"{estimate.value:+.1f} ({estimate.low:+.1f} to {estimate.high:+.1f})"
