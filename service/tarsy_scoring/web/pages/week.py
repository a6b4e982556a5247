"""The page of the week: each chain beside the week before, and what needs a person."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse

from tarsy_scoring.analytics import needs_attention
from tarsy_scoring.analytics.daily import midnight
from tarsy_scoring.analytics.needs_attention import MOST_FAILED, MOST_PENDING
from tarsy_scoring.analytics.week import CHAINS_SHOWN, DAYS, ChainWeek, read_week
from tarsy_scoring.dead_letters.dead_letters import count_open
from tarsy_scoring.labels import review
from tarsy_scoring.labels.disagreements import read_disagreements
from tarsy_scoring.limits.fleet import read_pauses
from tarsy_scoring.scores.reader import Holds
from tarsy_scoring.web.context import AppContext, context_of
from tarsy_scoring.web.edge.access import Admitted, Analysing
from tarsy_scoring.web.pages.rendering import page

router = APIRouter(include_in_schema=False)

FAILED_SHOWN = 20
NAMES_SHOWN = 10


@router.get("/week")
async def week_page(request: Request, caller: Analysing) -> HTMLResponse:
    """The last seven days of every chain, today included, and what waits for a person."""
    context = context_of(request)
    database, today = context.analytics.database, datetime.now(UTC).date()
    # One after the other: a page that holds several connections at once would take them from other pages.
    week = await read_week(database, today)
    due = await database.rows(needs_attention.WAITING, MOST_PENDING)
    waiting = {row["chain_id"]: row["scores"] for row in due}
    is_old = await database.rows(needs_attention.IS_OLDER, midnight(week.since - timedelta(days=DAYS)))
    holds = await context.reader.holds() if waiting else None
    return await asyncio.to_thread(  # rendering many chains would block the event loop
        page,
        "week.html",
        here="/week",
        week=week,
        today=today,
        days=DAYS,
        chains=[chain for chain in week.chains if chain.now.scores][:CHAINS_SHOWN],
        disagreements=await read_disagreements(database, since=midnight(week.since)),
        to_label=(await review.read_review(database))["to_label"],
        unread=await count_open(database),
        pauses=await read_pauses(database),
        failed=await database.rows(needs_attention.FAILED, midnight(week.since), MOST_FAILED),
        held=held_up(waiting, holds) if holds else [],
        drift=await database.rows(needs_attention.UNCONFIRMED, NAMES_SHOWN),
        may_confirm="score" in caller.scopes,
        never=never_scored(context, week.chains) if is_old else [],
        most_waiting=MOST_PENDING,
        failed_shown=FAILED_SHOWN,
        names_shown=NAMES_SHOWN,
    )


@router.post("/week/drift/{event_id}")
async def confirm(request: Request, caller: Admitted, event_id: UUID) -> RedirectResponse:
    """Take a finding of drift from the page: the caller has seen it."""
    await context_of(request).reader.database.rows(needs_attention.CONFIRM, event_id, caller.name)
    return RedirectResponse("/week#needs", 303)


def held_up(waiting: Mapping[str | None, int], holds: Holds) -> list[tuple[str | None, int, str, str]]:
    """
    The chains whose due scores a pause, a budget or an open circuit blocks.

    Returns:
        Chain, number of scores, reason, and the reason in words.
    """
    return [(chain, scores, *hold) for chain, scores in waiting.items() if (hold := holds.hold(chain))]


def never_scored(context: AppContext, chains: Sequence[ChainWeek]) -> list[str]:
    """Configured chains that are scored automatically and had no score in both weeks."""
    if not context.settings.enabled:
        return []
    seen = {chain.chain_id for chain in chains}
    configured = context.settings.config.chains.items()
    return [name for name, chain in configured if chain.enabled and name not in seen]
