"""
What is known of drift, for people: findings, how things stand with a chain, and which anchors lack judgements.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import Field

from tarsy_scoring.drift import anchors, detection
from tarsy_scoring.drift.anchors import Anchor, Standing, State
from tarsy_scoring.drift.detection import MOST_SHOWN, Finding, Situation
from tarsy_scoring.postgres.database import Connection, Database
from tarsy_scoring.queue.inbox import Inbox
from tarsy_scoring.records.analytics import Selection, TrendPoint
from tarsy_scoring.records.session_list import CUSTOM_PLAN
from tarsy_scoring.statistics.agreement import Estimate
from tarsy_scoring.statistics.comparison import DOUBTFUL_FLAGS
from tarsy_scoring.statistics.drift import Cause
from tarsy_scoring.statistics.judge_change import (
    DAYS_TO_LOOK,
    REIGN,
    SESSIONS_AFTER_DAYS,
    SESSIONS_TO_LOOK,
    Look,
    due_look,
    judged_by_both,
)

# Totals of a chain by day, judge and criteria: every score on its day, also where a session has several.
DAILY_TOTALS = """
SELECT (s.completed_at AT TIME ZONE 'UTC')::date AS day, s.judge_fingerprint, s.criteria,
       avg(s.total_score)::float8 AS average, min(s.total_score) AS minimum, max(s.total_score) AS maximum,
       count(*) AS count
FROM {schema}.session_scores s
WHERE s.status = 'completed' AND s.purpose = 'production' AND s.chain_id = $1
  AND ($2::text IS NULL OR s.criteria = $2)
  AND ($3::timestamptz IS NULL OR s.completed_at >= $3) AND ($4::timestamptz IS NULL OR s.completed_at < $4)
  AND s.total_score IS NOT NULL AND NOT s.flags ?| $5
GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""

MOST_ANCHORS_SHOWN = 100
CAUSES: Mapping[Cause | None, str] = {
    "judge": "the judge changed",
    "agents": "the agents changed",
    "both": "judge and agents changed",
    "none": "no change is shown",
    None: "cannot be told",
}
STATES: Mapping[State, str] = {
    "judged": "judged by the judge of now",
    "under_way": "under way",
    "lacking": "not judged yet by the judge of now",
    "given_up": "given up after several tries",
    "gone": "gone: the source no longer has it",
    "no_judge": "its chain has no scores of late under its criteria that have a fingerprint",
}


@dataclass(frozen=True, slots=True)
class ChainStanding:
    """Who judges a chain, and what the next look waits for."""

    chain_id: str
    criteria: str
    judge_fingerprint: Annotated[str | None, Field(description="Null: too few scores to say who the judge is.")]
    judges_since: Annotated[datetime | None, Field(description="Null: as far back as was looked.")]
    old_fingerprint: Annotated[str | None, Field(description="The judge before; null: it followed nobody.")]
    scores: Annotated[int, Field(description="Of the judge of now, as far as was looked.")]
    anchors: Annotated[int, Field(description="Judged by the judge before and by the one of now.")]
    outstanding: Annotated[int, Field(description="Anchors that the judge of now is still to judge.")]
    meaning: Annotated[str, Field(description="The same in words.")]


@dataclass(frozen=True, slots=True)
class DriftReport:
    """What is known of drift."""

    findings: Annotated[list[Finding], Field(description="The newest first.")]
    chain: Annotated[ChainStanding | None, Field(description="Of the chain that was asked for; null: of none.")]
    anchors: Annotated[dict[State, int], Field(description="How many anchors there are, by state.")]
    anchors_not_judged: Annotated[list[Anchor], Field(description="At most 100.")]


async def read_report(
    inbox: Inbox,
    chain: str | None = None,
    criteria: str | None = None,
    *,
    since: datetime | None = None,
    limit: int = MOST_SHOWN,
) -> DriftReport:
    """
    What is known of drift.

    Args:
        chain: None: findings of all chains, and how things stand with none.
        criteria: Only findings under criteria of this name.
        since: Only what was found since then.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    database = inbox.database
    found = await detection.findings(database, chain, criteria, since=since, limit=limit)
    standing = await anchors.standing(inbox)
    mine = [a for a in standing.anchors if chain is None or a.chain_id == chain]
    stands = None if chain is None else await _chain_standing(inbox, chain, standing)
    lacking = [a for a in mine if a.state != "judged"]
    return DriftReport(found, stands, dict(Counter(a.state for a in mine)), lacking[:MOST_ANCHORS_SHOWN])


async def _chain_standing(inbox: Inbox, chain: str, standing: Standing) -> ChainStanding:
    criteria = inbox.policy.chain(chain).criteria
    judgements = await anchors.judgements(inbox.database)
    found = await detection.situation(inbox.database, chain, criteria, standing, judgements)
    if found is None:
        meaning = f"It has fewer than {REIGN} scores with a fingerprint under {criteria}: too few to say who judges."
        return ChainStanding(chain, criteria, None, None, None, 0, 0, 0, meaning)
    now = datetime.now(UTC)
    return standing_of(found, await detection.looked_at(inbox.database, found, now), now)


async def daily_totals(database: Database, selection: Selection) -> list[TrendPoint]:
    """
    Totals of a chain per UTC day and judge, flagged ones left out.

    Raises:
        DatabaseAway: See `Database.once`.
    """

    async def work(connection: Connection) -> list[TrendPoint]:
        await connection.execute(CUSTOM_PLAN)
        arguments = (*selection.arguments, sorted(DOUBTFUL_FLAGS))
        return [TrendPoint(**dict(r)) for r in await connection.fetch(database.sql(DAILY_TOTALS), *arguments)]

    return await database.once(work)


def standing_of(found: Situation, looked: Collection[Look], now: datetime) -> ChainStanding:
    """
    How things stand, with words. Pure.

    Args:
        looked: Looks that were made at the change that brought this judge.
    """
    reign = found.reign
    both = 0 if reign.old is None else judged_by_both(found.judgements, reign.old, reign.fingerprint)
    return ChainStanding(
        found.chain_id,
        found.criteria,
        reign.fingerprint,
        reign.since,
        reign.old,
        len(reign.scores),
        both,
        found.outstanding,
        _waits_for(found, both, looked, now) + _unknown(found.unknown),
    )


def _waits_for(found: Situation, both: int, looked: Collection[Look], now: datetime) -> str:
    reign, scores = found.reign, len(found.reign.scores)
    if reign.old is None or reign.since is None:
        return _without_change(reign.judges, scores)
    told = f"Another judge took over at {reign.since:%Y-%m-%d %H:%M} UTC. {both} anchors were judged by both judges"
    is_late = now - reign.since >= timedelta(days=DAYS_TO_LOOK)
    if found.outstanding and not is_late:
        told += f", {found.outstanding} are still to be; the look waits for these, for at most {DAYS_TO_LOOK} days."
    else:
        told += f", {found.outstanding} are still to be." if found.outstanding else "."
        if due_look(reign, found.judgements, found.outstanding, looked, now) is not None:
            told += " A look is due and is made within five minutes."
    enough = SESSIONS_AFTER_DAYS if is_late else SESSIONS_TO_LOOK
    if scores < enough and "sessions" not in looked:
        later = "" if is_late else f", or after {DAYS_TO_LOOK} days {SESSIONS_AFTER_DAYS}"
        told += (
            f" What is the agents' part is looked at once there are {enough} scores by the new judge (there are "
            f"{scores}){later}."
        )
    if not both and not found.outstanding:
        told += " Without anchors that both judged, its part cannot be told from the agents'."
    return told


def _without_change(judges: int, scores: int) -> str:
    if judges == 1:
        return "One judge is in sight. Whether the agents change under it is looked for once a day."
    return (
        f"{judges} judges are in sight, and none has taken over from another: they take turns, stand in for each "
        "other, or one has just begun. No change of judge can be told here. Whether the agents change is looked for "
        f"once a day, in the {scores} scores of the judge who gave most of the last {REIGN}."
    )


def _unknown(scores: int) -> str:
    """Of scores without a fingerprint."""
    if not scores:
        return ""
    told = "1 score has" if scores == 1 else f"{scores:,} scores have"
    return (
        f" Since this judge's first score {told} no fingerprint: who gave them is unknown, and nothing is said of them."
    )


def in_points(estimate: Estimate) -> str:
    """A change with its interval, for people."""
    if estimate.value is None:
        return "unknown"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:+.1f}, no interval"
    if estimate.low == estimate.high:
        return f"{estimate.value:+.1f}"
    return f"{estimate.value:+.1f} ({estimate.low:+.1f} to {estimate.high:+.1f})"


def document_of(report: DriftReport) -> dict[str, Any]:
    """For programs."""
    return asdict(report)


def markdown(report: DriftReport) -> str:
    """For people, in Markdown."""
    lines = ["# Drift", ""]
    if report.chain is not None:
        lines += [f"{_plain(report.chain.chain_id)}: {report.chain.meaning}", ""]
    lines += _anchor_lines(report.anchors)
    if not report.findings:
        lines += ["No look has found anything yet."]
    for finding in report.findings:
        lines += _finding_lines(finding)
    return "\n".join(lines).rstrip() + "\n"


def _anchor_lines(counts: Mapping[State, int]) -> list[str]:
    if not counts:
        return [
            "There are no anchors: no change of judge can be told from a change of agents. `anchors add` helps.",
            "",
        ]
    told = ", ".join(f"{counts[state]} {words}" for state, words in STATES.items() if state in counts)
    return [f"Anchors: {told}.", ""]


def _finding_lines(finding: Finding) -> Sequence[str]:
    cause = CAUSES[finding.cause] + ("" if finding.is_clear or finding.cause is None else ", probably")
    lines = [
        f"## {finding.found_at:%Y-%m-%d %H:%M} {_plain(finding.chain_id)}: {cause}",
        "",
        *(f"- {sentence}" for sentence in finding.meaning),
        "",
        f"whole change {in_points(finding.whole)}; judge's part {in_points(finding.judge)}; agents' part "
        f"{in_points(finding.agents)}; {finding.anchors} anchors, {_sessions(finding)}",
        "",
    ]
    judges = f"judge {(finding.old_fingerprint or '')[:12]} -> {finding.new_fingerprint[:12]}"
    return [*lines, judges if finding.old_fingerprint else f"judge {finding.new_fingerprint[:12]}", ""]


def _sessions(finding: Finding) -> str:
    if finding.look == "anchors":
        return "sessions left out"
    return f"{finding.compared_before} sessions before and {finding.compared_after} after"


def _plain(name: str) -> str:
    """A name from outside in one line."""
    return " ".join("".join(c if c.isprintable() else " " for c in name).split())
