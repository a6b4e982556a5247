"""Routes over many scores: session list, exports and analytics."""

from collections.abc import AsyncIterator
from datetime import date
from typing import Annotated

from fastapi import Depends, Query, Request
from fastapi.responses import StreamingResponse

from tarsy_scoring.analytics import analytics
from tarsy_scoring.analytics.analytics import Distribution, FailureTags
from tarsy_scoring.analytics.chain_averages import ChainTrends, chain_trends
from tarsy_scoring.audit import audit
from tarsy_scoring.missing_tools.ledger import Ledger, read_ledger
from tarsy_scoring.scores.cursors import InvalidCursor
from tarsy_scoring.scores.export import export_scores, written
from tarsy_scoring.scores.session_list import SessionPage, list_sessions, read_cursor
from tarsy_scoring.web.api.common import scoring_routes
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Analysing
from tarsy_scoring.web.edge.problems import malformed
from tarsy_scoring.web.queries import ExportQuery, MissingToolsQuery, ScoresQuery, SessionsQuery, TrendsQuery

router = scoring_routes("browsing")
figures = scoring_routes("analytics", "/analytics")


@router.get("/sessions", summary="List sessions with their scores")
async def read_sessions(
    request: Request, _: Analysing, query: Annotated[SessionsQuery, Query()]
) -> SessionPage:
    """
    Known sessions, each with the latest completed production score and how the newest one stands.

    Filters on a score apply to the latest completed one, and `status` to the newest one. A page continues
    after the last session on the page before, so that no session is repeated or left out while sessions
    arrive.
    """
    context = context_of(request)
    filters = query.filters(query.status)
    try:
        after = None if query.cursor is None else read_cursor(query.cursor, filters, query.sort)
    except InvalidCursor as error:
        raise malformed(["query", "cursor"], str(error)) from None
    return await list_sessions(context.analytics, filters, query.sort, after, query.limit)


async def _export_slot(request: Request) -> AsyncIterator[None]:
    """Hold a slot for an export until the last byte has been sent. Raises: QueueFull: No slot is free."""
    async with context_of(request).exports.hold():
        yield


@router.get(
    "/export",
    summary="Export scores",
    response_class=StreamingResponse,
    dependencies=[Depends(_export_slot)],
    responses={
        200: {
            "description": "A document per line, or CSV with a header. Incomplete if the connection breaks.",
            "content": {
                "application/x-ndjson": {"schema": {"type": "string"}},
                "text/csv": {"schema": {"type": "string"}},
            },
        }
    },
)
async def export(
    request: Request, caller: Analysing, query: Annotated[ExportQuery, Query()]
) -> StreamingResponse:
    """
    Stream scores, newest first: every completed production score, unless the filters say otherwise.

    Filters apply to the exported score itself. In CSV, a text that a spreadsheet would run as a formula gets
    an apostrophe in front, also after a semicolon, tab or line break.
    """
    await audit.note(context_of(request).inbox.database, "export", by=caller.name, **query.audited)
    reader = context_of(request).analytics
    batches = export_scores(reader, query.chosen)
    parts = written(batches, query.format)
    first = await anext(parts)  # before the answer begins, so that a database outage is a 503
    disposition = f'attachment; filename="scores-{date.today():%Y-%m-%d}.{query.format}"'
    return StreamingResponse(
        _with_first(first, parts),
        media_type="text/csv; charset=utf-8; header=present"
        if query.format == "csv"
        else "application/x-ndjson",
        headers={"Content-Disposition": disposition, "Cache-Control": "no-store"},
    )


async def _with_first(first: bytes, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for text in parts:
        yield text


# --- analytics -----------------------------------------------------------------------------------------


@figures.get("/trends", summary="Totals per day")
async def read_trends(request: Request, _: Analysing, query: Annotated[TrendsQuery, Query()]) -> ChainTrends:
    """
    Average, lowest and highest total and score count, per UTC day and judge fingerprint.

    A session counts once, with the latest completed production score. Scores flagged `outcome_missing`,
    `outcome_score_mismatch`, `tampering_suspected` or `mostly_unseen` are left out. Points with different fingerprints are
    not comparable: show a break between them. A session that is scored again moves to the new day, unless `day_of=ended`.

    `chains` averages each chain: totals, share that passed, judging cost, and what the investigations took in
    tokens, money and time.
    """
    database = context_of(request).analytics.database
    return await chain_trends(database, query.selection(), query.day_of)


@figures.get("/distribution", summary="Totals by band")
async def read_distribution(
    request: Request, _: Analysing, query: Annotated[ScoresQuery, Query()]
) -> Distribution:
    """
    How many totals lie in each band, and category averages per band, for each criteria.

    Criteria without bands have 0-49, 50-74 and 75-100. A session counts once, with the latest completed production
    score, whatever the flags.
    """
    context = context_of(request)
    return await analytics.distribution(context.analytics.database, query.selection(), context.registry.bands)


@figures.get("/missing-tools", summary="Tools to build next")
async def read_missing_tools(
    request: Request, _: Analysing, query: Annotated[MissingToolsQuery, Query()]
) -> Ledger:
    """
    Tools that judges missed, those that most sessions asked for first.

    Spellings that differ in case, spaces, hyphens and underscores count as one tool, as do plurals and typing
    errors in long words; all spellings are shown, and decisions by people come first. A session counts once,
    with the latest completed production score. Planned and built tools beyond `limit` come last.
    """
    database = context_of(request).analytics.database
    return await read_ledger(database, query.selection(), query.limit)


@figures.get("/failure-tags", summary="Failure tags")
async def read_failure_tags(
    request: Request, _: Analysing, query: Annotated[ScoresQuery, Query()]
) -> FailureTags:
    """
    How many scores have each failure tag, in total and per chain.

    A session counts once, with the latest completed production score.
    """
    return await analytics.failure_tags(context_of(request).analytics.database, query.selection())
