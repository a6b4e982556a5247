"""Server-rendered HTML pages. `registry.PAGES` lists them."""

import asyncio
from datetime import UTC, datetime

import structlog

from tarsy_scoring.missing_tools import ledger
from tarsy_scoring.records import review
from tarsy_scoring.records.analytics import Selection
from tarsy_scoring.web.context import AppContext
from tarsy_scoring.web.pages.labelling import cards_of
from tarsy_scoring.web.pages.period import read_period_form
from tarsy_scoring.web.pages.registry import routers
from tarsy_scoring.web.pages.rendering import read_templates
from tarsy_scoring.web.pages.scores import problem_page

__all__ = ["problem_page", "routers", "warm"]

log = structlog.get_logger()


async def warm(context: AppContext) -> None:
    """
    Fill the caches that the first visitor would wait for: templates, the ledger of missing tools, the trust
    cards.

    Draws no scores for review. A failure is logged and goes no further: the first visitor waits, or gets the
    error.
    """
    database = context.reader.database
    default_period = read_period_form(b"", datetime.now(UTC).date()).selection
    try:
        await asyncio.to_thread(read_templates)
        for selection in (default_period, Selection()):
            await ledger.read_ledger(database, selection, read=context.tool_requests.read)
        await cards_of(database, await review.drawn(database))
    except Exception as error:  # noqa: BLE001 - warming is optional and must not end the service
        log.info("pages.not_warmed", error=type(error).__name__)
