"""Routes of the ledger of missing tools: which tools to build next, their states, and merges of names."""

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
    """A new state of a tool."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"tool": "node_pressure", "state": "built"}]}
    )

    tool: Name = Field(description="Any name of the tool.")
    state: SaidState
    since: Moment | None = Field(
        None,
        description="Start of the state (RFC 3339); default: as set before, else now. With `built` it is the time "
        "since when the tool exists or is better: sessions before it are compared with sessions since.",
    )
    note: Annotated[str, Field(max_length=MAX_NOTE, pattern=PLAIN_TEXT)] | None = None


class MergeRequest(BaseModel):
    """A decision to which tool a name belongs."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"name": "tail_logs", "tool": "live_logs"}, {"name": "cpu_top"}]},
    )

    name: Name
    tool: Name | None = Field(
        None, description="Any name of the tool. If left out, the name becomes a tool of its own, which undoes a merge."
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
    Tools that judges missed, most wanted first, with their states and the decisions about their names.

    `open`, `planned` and `built` were set by a caller, or `built` follows from agents calling the tool now.
    `confirmed` and `still_missed` are measured over the last year at 95 %: less than a quarter of the demand
    is left, or more than half of it. Planned and built tools that are not among the most wanted, or that no
    judge missed in this time, come last.
    """
    return await look_up(request, query.selection(), query.sort, query.limit)


async def look_up(request: Request, selection: Selection, sort: ToolSort, limit: int) -> Ledger:
    """The ledger; with many scores it may be some minutes old."""
    context = context_of(request)
    return await ledger.read_ledger(context.reader.database, selection, sort, limit, context.tool_requests.read)


@router.post(
    "/states",
    name="say",  # the operation id of generated clients
    summary="Set the state of a tool",
    status_code=201,
    dependencies=[Depends(no_parameters)],
    responses=example(_SAYING, 201) | {404: NO_SUCH_TOOL},
)
async def set_state(request: Request, caller: Scoring, said: SayingRequest) -> Saying:
    """
    Stored with its author and time. Earlier states stay in the history, and the newest counts.

    Names that were merged into this tool by their spelling stay merged from then on. Only `since` together
    with `built` changes the measurement.
    """
    if said.since is not None and not decisions.has_come(said.since):
        raise malformed(["body"], "`since`: this time is in the future")
    context = context_of(request)
    with _as_problems():
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
    name="join",  # the operation id of generated clients
    summary="Merge a name into a tool, or separate it",
    status_code=201,
    dependencies=[Depends(no_parameters)],
    responses=example(_MERGE, 201) | {404: NO_SUCH_TOOL},
)
async def merge_names(request: Request, caller: Scoring, wanted: MergeRequest) -> Merge:
    """
    Merge a name in all its spellings into a tool, or, without `tool`, separate it from similar names.

    Names merged into it by their spelling move with it. Stored with its author and time. Earlier decisions
    stay in the history, and the newest counts.
    """
    context = context_of(request)
    with _as_problems():
        return await decisions.merge_name(
            context.reader.database, wanted.name, wanted.tool, by=caller.name, read=context.tool_requests.read
        )


@contextmanager
def _as_problems() -> Iterator[None]:
    """Translate errors of decisions. Raises: Problem: 404 no judge missed such a tool, 422 both names are the
    same.
    """
    try:
        yield
    except UnknownTool as error:
        raise Problem(404, "Unknown tool", str(error)) from error
    except OneName as error:
        raise malformed(["body"], str(error), "One name") from error
