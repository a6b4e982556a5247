"""
What the first visitor of a page would wait for, looked up when the service starts: only a convenience.
"""

import asyncio
from datetime import UTC, datetime

import structlog

from tarsy_scoring.missing_tools import ledger
from tarsy_scoring.records import review
from tarsy_scoring.records.analytics import Selection
from tarsy_scoring.web.context import AppContext
from tarsy_scoring.web.pages import insights_view
from tarsy_scoring.web.pages.labelling import cards_of
from tarsy_scoring.web.pages.rendering import read_templates

log = structlog.get_logger()


async def warm(context: AppContext) -> None:
    """
    Read the templates, look at missing tools of the first page and of all time, make the trust cards of judges at work.

    Draws nothing, and breaks nothing where it fails: whoever asks is told why.
    """
    database = context.reader.database
    first_asked = insights_view.asked({}, datetime.now(UTC).date()).selection
    try:
        await asyncio.to_thread(read_templates)
        for selection in (first_asked, Selection()):
            await ledger.read_ledger(database, selection, read=context.tool_requests.read)
        await cards_of(database, await review.drawn(database))
    except Exception as error:  # noqa: BLE001 - only a convenience: it may not end the service
        log.info("pages.not_warmed", error=type(error).__name__)
