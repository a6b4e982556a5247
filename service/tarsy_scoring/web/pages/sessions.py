"""The page that lists sessions, with a filter form."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from tarsy_scoring.events import SESSION_ID_PATTERN
from tarsy_scoring.live.events import SESSIONS
from tarsy_scoring.scores.cursors import InvalidCursor
from tarsy_scoring.scores.session_list import SessionPage, list_sessions, read_cursor
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Analysing
from tarsy_scoring.web.pages import words
from tarsy_scoring.web.pages.forms import chain_names
from tarsy_scoring.web.pages.rendering import Live, page, position_of
from tarsy_scoring.web.queries import Form, SessionsQuery, read_form

router = APIRouter(include_in_schema=False)

PAGE_SIZE = 50  # a page follows each open score on it, and a client may follow 100 channels
FOLDED = ("criteria", "outcome", "since", "until", "label", "flag")  # behind "More filters" unless one is set
OUTCOMES = {"pass": "passed", "fail": "did not pass"}
SORTS = {"newest": "newest first", "score_asc": "worst first", "score_desc": "best first"}
FIELDS = ("q", "chain", "status", "min_score", "max_score", *FOLDED, "sort", "cursor")


@router.get("/")
async def sessions_page(request: Request, caller: Analysing) -> HTMLResponse:
    """
    The known sessions that match the form. Empty fields are ignored; both days (UTC) are included.
    """
    context = context_of(request)
    form = read_form(request.scope["query_string"], SessionsQuery, FIELDS)
    query, faults = form.query or SessionsQuery(), list(form.faults)
    filters = query.filters(query.status)
    found, after, live = SessionPage(sessions=[], next_cursor=None), None, None
    if query.cursor:
        try:
            after = read_cursor(query.cursor, filters, query.sort)
        except InvalidCursor:
            faults.append("this link belongs to a list with other filters: go to the first page")
    if not faults:
        live = Live(SESSIONS, await position_of(context))
        found = await list_sessions(context.analytics, filters, query.sort, after, PAGE_SIZE)
    return page(
        "sessions.html",
        422 if faults else 200,
        here="/",
        criteria=context.registry,
        live=live,
        may_score="score" in caller.scopes,
        tarsy_url=context.settings.tarsy_url,
        chains=await chain_names(context),
        criteria_names=sorted(context.policy.hashes),
        **list_values(form, found, faults),
    )


def list_values(form: Form[SessionsQuery], found: SessionPage, faults: Sequence[str]) -> dict[str, Any]:
    """Values for `sessions.html` about form and list."""
    kept = {name: value for name, value in form.values.items() if value and name != "cursor"}
    sought = form.values["q"]  # the source may know a session that the list does not
    return {
        "form": form,
        "faults": faults,
        "sessions": found.sessions,
        "explained": _explained(found),
        "is_narrowed": bool(kept.keys() - {"sort"}),
        "shows_folded": bool(kept.keys() & set(FOLDED)),
        "sought_session": sought if SESSION_ID_PATTERN.fullmatch(sought) else None,
        "is_continued": bool(form.values["cursor"]),
        "first_query": urlencode(kept),
        "next_query": urlencode(kept | {"cursor": found.next_cursor}) if found.next_cursor else None,
        "sorts": SORTS,
        "outcomes": OUTCOMES,
        "new_key": uuid4,
    }


def _explained(found: SessionPage) -> dict[str, str]:
    """The flags on the page with their meanings."""
    flags = {flag for session in found.sessions if session.score for flag in session.score.flags}
    return {flag: meaning for flag, meaning in words.FLAGS.items() if flag in flags}
