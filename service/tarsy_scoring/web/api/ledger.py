"""
The ledger of missing tools over HTTP: what to build next, and what was decided about names and tools.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from tarsy_scoring.missing_tools import decisions, ledger
from tarsy_scoring.missing_tools.decisions import Merge, OneName, SaidState, Saying, UnknownTool
from tarsy_scoring.missing_tools.ledger import Ledger
from tarsy_scoring.records.analytics import Selection, ToolSort
from tarsy_scoring.web.api.common import PLAIN_TEXT, PREFIX, Reading, Scoring, example
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.problems import Problem, malformed
from tarsy_scoring.web.queries import MissingToolsQuery, Moment, no_parameters

router = APIRouter(prefix=f"{PREFIX}/missing-tools", tags=["tools"])

MAX_NOTE = 4000

Name = Annotated[str, Field(min_length=1, max_length=1000, pattern=PLAIN_TEXT)]
NO_SUCH_TOOL = {"description": "No judge has missed a tool of that name."}

_MERGE: dict[str, JsonValue] = {
    "name": "NodePressure",
    "tool": "node_pressure",
    "is_automatic": False,
    "decided_by": "ada",
    "decided_at": "2026-01-06T09:00:00Z",
}
_SAYING: dict[str, JsonValue] = {
    "tool": "node_pressure",
    "state": "built",
    "since": "2026-01-05T10:00:00Z",
    "said_by": "ada",
    "said_at": "2026-01-06T09:00:00Z",
    "note": "in the Kubernetes server, from version 4 on",
}
_ENTRY: dict[str, JsonValue] = {
    "tool_name": "node_pressure",
    "spellings": [{"name": "node_pressure", "sessions": 5}, {"name": "NodePressure", "sessions": 2}],
    "sessions": 7,
    "chains": 1,
    "by_chain": [{"chain_id": "kubernetes", "sessions": 7}],
    "points_lost": 231,
    "exists": True,
    "state": "confirmed",
    "said": _SAYING,
    "demand": {
        "verdict": "confirmed",
        "sessions_without": 100,
        "asked_without": 30,
        "sessions_with": 60,
        "asked_with": 0,
        "expected": 18.0,
        "left": 0.0,
        "sessions_needed": None,
    },
    "has_other_judge": False,
    "merges": [_MERGE],
}


class SayingRequest(BaseModel):
    """How far a tool has come."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"tool": "node_pressure", "state": "built"}]}
    )

    tool: Name = Field(description="Any of its names.")
    state: SaidState
    since: Moment | None = Field(
        None,
        description="From when on (RFC 3339); default: as it was said before, else now. Given with `built` it says "
        "that the tool is there, or better, since then: sessions before it are held against those since.",
    )
    note: Annotated[str, Field(max_length=MAX_NOTE, pattern=PLAIN_TEXT)] | None = None


class MergeRequest(BaseModel):
    """To which tool a name belongs."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"name": "tail_logs", "tool": "live_logs"}, {"name": "cpu_top"}]},
    )

    name: Name
    tool: Name | None = Field(
        None, description="Any name of the tool; left out: the name is kept apart from then on, which undoes a merge."
    )


@router.get(
    "",
    summary="Read the ledger of missing tools",
    responses=example(
        {"as_of": "2026-01-06T09:00:00Z", "entries": [_ENTRY], "tools_left_out": 0, "spellings_left_out": 0}
    ),
)
async def read_ledger(request: Request, _: Reading, query: Annotated[MissingToolsQuery, Query()]) -> Ledger:
    """
    Tools that judges missed, the most wanted first, with how far each has come and what was decided about its names.

    `open`, `planned` and `built` are what somebody said, or `built` because agents have it now; `confirmed` and
    `still_missed` are measured over the last year, at 95 %: less than a quarter of the demand is left, or more than
    half of it. Tools that are planned or built come last where they are not among the most wanted, or nobody asked for
    them in this time.
    """
    return await look_up(request, query.selection(), query.sort, query.limit)


async def look_up(request: Request, selection: Selection, sort: ToolSort, limit: int) -> Ledger:
    """The ledger, over scores that are at most some minutes old where there are many."""
    context = context_of(request)
    return await ledger.read_ledger(context.reader.database, selection, sort, limit, context.tool_requests.read)


@router.post(
    "/states",
    summary="Say how far a tool has come",
    status_code=201,
    dependencies=[Depends(no_parameters)],
    responses=example(_SAYING, 201) | {404: NO_SUCH_TOOL},
)
async def say(request: Request, caller: Scoring, said: SayingRequest) -> Saying:
    """
    Kept with who said it and when; what was said before stays, and the last word counts.

    The names that were found to be this tool's by their spelling stay its own from then on. Only `since` given with
    `built` changes what is measured.
    """
    if said.since is not None and not decisions.has_come(said.since):
        raise malformed(["body"], "`since`: this time has not come yet")
    context = context_of(request)
    with _told():
        return await decisions.set_state(
            context.reader.database,
            said.tool,
            said.state,
            by=caller.name,
            since=said.since,
            note=said.note or None,
            read=context.tool_requests.read,
        )


@router.post(
    "/merges",
    summary="Join a name to a tool, or keep it apart",
    status_code=201,
    dependencies=[Depends(no_parameters)],
    responses=example(_MERGE, 201) | {404: NO_SUCH_TOOL},
)
async def join(request: Request, caller: Scoring, wanted: MergeRequest) -> Merge:
    """
    A name in all its spellings belongs to that tool, or, where none is given, is kept apart from everything like it.

    The names that it has by their spelling come with it. Kept with who decided it and when; what was decided before
    stays, and the last word counts.
    """
    context = context_of(request)
    with _told():
        return await decisions.merge_name(
            context.reader.database, wanted.name, wanted.tool, by=caller.name, read=context.tool_requests.read
        )


@contextmanager
def _told() -> Iterator[None]:
    """Raises: Problem: 404 nobody asked for such a tool, 422 it is one name anyway."""
    try:
        yield
    except UnknownTool as error:
        raise Problem(404, "Unknown tool", str(error)) from error
    except OneName as error:
        raise malformed(["body"], str(error), "One name") from error
