"""Routes that change the missing-tools ledger: tool states and name merges."""

from typing import Annotated

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field

from tarsy_scoring.missing_tools import decisions
from tarsy_scoring.missing_tools.decisions import Merge, ToolState, ToolStateName
from tarsy_scoring.postgres.moments import moment
from tarsy_scoring.web.api.common import PLAIN_TEXT, scoring_routes
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Admitted
from tarsy_scoring.web.queries import Time

router = scoring_routes("tools", "/missing-tools")

MAX_NOTE = 4000

Name = Annotated[str, Field(min_length=1, max_length=1000, pattern=PLAIN_TEXT)]
NO_SUCH_TOOL = {"description": "No judge has missed a tool of that name."}


class SayingRequest(BaseModel):
    """A new tool state."""

    model_config = ConfigDict(extra="forbid")

    tool: Name = Field(description="Any name of the tool.")
    state: ToolStateName
    since: Time | None = Field(None, description="Start of the state (RFC 3339); default: now.")
    note: Annotated[str, Field(max_length=MAX_NOTE, pattern=PLAIN_TEXT)] | None = None


class MergeRequest(BaseModel):
    """A decision to which tool a name belongs."""

    model_config = ConfigDict(extra="forbid")

    name: Name
    tool: Name | None = Field(
        None,
        description="Any name of the tool. If left out, the name becomes another tool, which undoes a merge.",
    )


@router.post(
    "/states",
    name="say",  # the operation id in generated clients
    summary="Set the state of a tool",
    status_code=201,
    responses={404: NO_SUCH_TOOL},
)
async def set_state(request: Request, caller: Admitted, said: SayingRequest) -> ToolState:
    """
    Store a tool state with author and time. Earlier states stay in the history; the newest counts.

    """
    return await decisions.set_state(
        context_of(request).analytics.database,
        said.tool,
        said.state,
        by=caller.name,
        since=moment(said.since, "since of a tool state"),
        note=said.note or None,
    )


@router.post(
    "/merges",
    name="join",  # the operation id in generated clients
    summary="Merge a name into a tool, or separate it",
    status_code=201,
    responses={404: NO_SUCH_TOOL},
)
async def merge_names(request: Request, caller: Admitted, wanted: MergeRequest) -> Merge:
    """
    Merge a name in all spellings into a tool, or, without `tool`, separate it from similar names.

    The decision is stored with author and time. Earlier decisions stay in the history, and the newest
    counts.
    """
    database = context_of(request).analytics.database
    return await decisions.merge_name(database, wanted.name, wanted.tool, by=caller.name)
