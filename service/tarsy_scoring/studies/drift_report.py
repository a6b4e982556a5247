"""The drift report: findings, and anchors that lack judgements."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from pydantic import Field

from tarsy_scoring.postgres.database import Database
from tarsy_scoring.queue.admission import Policy
from tarsy_scoring.studies import anchors, findings
from tarsy_scoring.studies.anchors import Anchor, State
from tarsy_scoring.studies.detection import Cause
from tarsy_scoring.studies.findings import Finding

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
class DriftReport:
    """The drift report."""

    findings: Annotated[list[Finding], Field(description="Newest first.")]
    anchors: Annotated[dict[State, int], Field(description="Number of anchors by state.")]
    anchors_not_judged: Annotated[list[Anchor], Field(description="At most 100.")]


async def read_report(
    database: Database,
    policy: Policy,
    chain: str | None,
    criteria: str | None,
    since: datetime | None,
    limit: int,
) -> DriftReport:
    """
    Read the drift report.

    Args:
        chain: None: findings and anchors of all chains.
        criteria: Only findings under criteria with this name.
        since: Only findings made since then.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    found = await findings.read_findings(database, chain, criteria, since, limit)
    standing = await anchors.standing(database, policy)
    mine = [a for a in standing.anchors if chain is None or a.chain_id == chain]
    lacking = [a for a in mine if a.state != "judged"]
    return DriftReport(found, dict(Counter(a.state for a in mine)), lacking[:MOST_ANCHORS_SHOWN])
