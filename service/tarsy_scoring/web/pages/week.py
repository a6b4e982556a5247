"""
The page of the week: which chains got worse and what else differs in them, what needs a person, and each
chain beside
the week before.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from tarsy_scoring.analytics.needs_attention import MOST_PENDING, read_failed, read_waiting
from tarsy_scoring.analytics.week import DAYS, ChainWeek, read_week
from tarsy_scoring.analytics.week_changes import read_changes
from tarsy_scoring.dead_letters.letter_states import newest_letters
from tarsy_scoring.labels import review
from tarsy_scoring.limits.fleet import read_pauses
from tarsy_scoring.missing_tools.decisions import read_decisions
from tarsy_scoring.scores.bands import bands_of
from tarsy_scoring.scores.reader import Holds
from tarsy_scoring.studies.drift_report import CAUSES, in_points
from tarsy_scoring.studies.findings import Finding, read_findings
from tarsy_scoring.web.context import AppContext, context_of
from tarsy_scoring.web.edge.access import Analysing
from tarsy_scoring.web.pages.rendering import page

router = APIRouter(include_in_schema=False)

CHAINS_SHOWN = 100
FAILED_SHOWN = 20
NAMES_SHOWN = 10
FINDINGS_READ = 100
SENTENCES = 2  # about what differs, behind the first one
DIFFERENCES_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Held:
    """Due scores of a chain that wait for more than their turn."""

    chain_id: str | None
    scores: int
    reason: str
    text: str


@router.get("/week")
async def week_page(request: Request, _: Analysing) -> HTMLResponse:
    """The last seven days of every chain, today included, and what waits for a person."""
    context = context_of(request)
    database, today = context.analytics.database, datetime.now(UTC).date()
    right_from = {criteria.name: bands_of(criteria.bands)[-1].low for criteria in context.registry}
    week = await read_week(database, right_from, today)
    changes = await read_changes(database, week, (await read_decisions(database)).merge)
    failed = await read_failed(database, datetime.combine(week.since, time(), UTC))
    waiting = await read_waiting(database)
    picks = await review.read_review(database)
    pauses = await read_pauses(database)
    letters = await newest_letters(database, None, 1)
    findings = await read_findings(
        database, since=datetime.now(UTC) - timedelta(days=DAYS), limit=FINDINGS_READ
    )
    holds = await context.reader.holds() if waiting else None
    unread = letters.by_state.get("open", 0)
    return await asyncio.to_thread(  # rendering many chains would block the event loop
        page,
        "week.html",
        here="/week",
        week=week,
        changes=changes,
        explained={one.chain.chain_id for one in changes},
        today=today,
        days=DAYS,
        chains=[chain for chain in week.chains if chain.now.scores][:CHAINS_SHOWN],
        to_label=picks.to_label,
        unread=unread,
        pauses=pauses,
        failed=failed,
        held=held_up(waiting, holds),
        never=never_scored(context, week.chains),
        most_waiting=MOST_PENDING,
        failed_shown=FAILED_SHOWN,
        names_shown=NAMES_SHOWN,
        sentences=SENTENCES,
        differences_shown=DIFFERENCES_SHOWN,
        changes_of=lambda chain: _changes_of(chain, findings, week.since),
        begun_of=lambda chain: _begun_in(_changes_of(chain, findings, week.since), week.since),
        began_before=began_before,
        causes=CAUSES,
        in_points=in_points,
    )


def held_up(waiting: Mapping[str | None, int], holds: Holds | None) -> list[Held]:
    """The chains whose due scores nothing but an operator, a provider or the next day releases."""
    found = []
    for chain, scores in waiting.items():
        if holds is not None and (hold := holds.hold(chain)):
            found.append(Held(chain, scores, *hold))
    return found


def never_scored(context: AppContext, chains: Sequence[ChainWeek]) -> list[str]:
    """Configured chains that are scored automatically and had no score in both weeks."""
    seen = {chain.chain_id for chain in chains}
    configured = context.settings.config.chains.items()
    return (
        [name for name, chain in configured if chain.enabled and name not in seen]
        if context.settings.enabled
        else []
    )


def began_before(finding: Finding, since: date) -> bool:
    """
    Whether a change began before this day; without a time it is older than the scores that the look read.
    """
    return finding.began_at is None or finding.began_at.date() < since


def _changes_of(chain: ChainWeek, findings: Sequence[Finding], since: date) -> list[Finding]:
    """Findings about a chain, those of changes that began in the week first."""
    own = [f for f in findings if f.is_event and f.chain_id == chain.chain_id]
    return sorted(own, key=lambda finding: began_before(finding, since))


def _begun_in(findings: Sequence[Finding], since: date) -> list[Finding]:
    return [finding for finding in findings if not began_before(finding, since)]
