"""
Many scores over HTTP: the list of sessions, exports, and what scores say together.
"""

import re
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.json_schema import SkipJsonSchema

from tarsy_scoring.records import analytics
from tarsy_scoring.records.analytics import Distribution, FailureTags, MissingTools, Selection, Trends
from tarsy_scoring.records.export import Format, Purpose, export_scores, written
from tarsy_scoring.records.session_list import (
    LONGEST_CURSOR,
    Filters,
    InvalidCursor,
    SessionPage,
    Sort,
    list_sessions,
    read_cursor,
)
from tarsy_scoring.statistics.agreement import Band, bands_of
from tarsy_scoring.web.access import may_read
from tarsy_scoring.web.context import Caller, Problem, Site, malformed, served, site_of

router = APIRouter(prefix="/api/v1/scoring")

Reading = Annotated[Caller, Depends(may_read)]
Status = Literal["pending", "in_progress", "completed", "failed", "timed_out", "cancelled"]

# Each reads batch after batch for as long as its reader likes.
MAX_EXPORTS = 4
EXPORT_RETRY_S = 10

_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
# The first and the last moments are no moment at all in some time zones.
_EARLIEST, _LATEST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)


def _moment(text: Any) -> datetime:
    if not isinstance(text, str) or not _RFC_3339.fullmatch(text):
        raise ValueError("not an RFC 3339 time such as 2026-01-31T12:00:00Z; in an address write + as %2B")
    try:
        moment = datetime.fromisoformat(text.upper())
    except ValueError:
        raise ValueError("there is no such time") from None
    return min(max(moment, _EARLIEST), _LATEST).astimezone(UTC)


def _labels(pairs: list[str]) -> list[str]:
    names = [pair.partition("=")[0] for pair in pairs]
    if len(set(names)) < len(names):
        raise ValueError("a label has one value")
    return pairs


Moment = Annotated[datetime, BeforeValidator(_moment), WithJsonSchema({"type": "string", "format": "date-time"})]
Word = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00]+$")]
Total = Annotated[int, Field(ge=0, le=100)]
Label = Annotated[str, Field(min_length=2, max_length=1000, pattern=r"^[^\x00=]+=[^\x00]*$")]


class _Range(BaseModel):
    """A range of time; what it is about is told per list."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    chain: Word | SkipJsonSchema[None] = Field(None, description="Of this chain.", examples=["kubernetes"])
    criteria: Word | SkipJsonSchema[None] = Field(None, description="Whose score is under criteria of this name.")
    since: Moment | SkipJsonSchema[None] = Field(None, description="From this time on (RFC 3339).")
    until: Moment | SkipJsonSchema[None] = Field(None, description="Before this time (RFC 3339).")

    @model_validator(mode="after")
    def _ends_after_it_began(self) -> Self:
        if self.since and self.until and self.since >= self.until:
            raise ValueError("`since` must be before `until`")
        return self


class _Looked(_Range):
    """What is looked for."""

    min_score: Total | SkipJsonSchema[None] = Field(None, description="Total of at least this.")
    max_score: Total | SkipJsonSchema[None] = Field(None, description="Total of at most this.")
    alert_type: Word | SkipJsonSchema[None] = Field(None, description="Of this alert type.")
    label: Annotated[list[Label], AfterValidator(_labels)] = Field(
        [], max_length=10, description="NAME=VALUE; given several times, all of them.", examples=[["guidance=v2"]]
    )
    flag: Word | SkipJsonSchema[None] = Field(
        None, description="Whose score has this flag.", examples=["injection_suspected"]
    )
    outcome: Literal["pass", "fail"] | SkipJsonSchema[None] = Field(None, description="Whose score came to this.")
    q: Word | SkipJsonSchema[None] = Field(
        None, description="Whose session id or alert type begins so; upper and lower case are the same."
    )

    @model_validator(mode="after")
    def _has_a_range_of_totals(self) -> Self:
        if self.min_score is not None and self.max_score is not None and self.min_score > self.max_score:
            raise ValueError("`min_score` must not be above `max_score`")
        return self

    def filters(self, status: str | None) -> Filters:
        return Filters(
            chain=self.chain,
            status=status,
            min_score=self.min_score,
            max_score=self.max_score,
            criteria=self.criteria,
            alert_type=self.alert_type,
            labels=dict(pair.split("=", 1) for pair in self.label),
            flag=self.flag,
            outcome=self.outcome,
            since=self.since,
            until=self.until,
            prefix=self.q,
        )


class SessionsQuery(_Looked):
    """Which sessions; `since` and `until` are about when the session ended."""

    status: Status | Literal["not_scored"] | SkipJsonSchema[None] = Field(
        None, description="Of the newest score; `not_scored`: there is none."
    )
    sort: Sort = Field(
        "newest", description="By when they ended, or by total; those without a total come last either way."
    )
    cursor: Annotated[str, Field(max_length=LONGEST_CURSOR)] | SkipJsonSchema[None] = Field(
        None, description="`next_cursor` of the page before, with the same filters and sort."
    )
    limit: int = Field(50, ge=1, le=200, description="Sessions on a page.")


class ExportQuery(_Looked):
    """Which scores; `since` and `until` are about when the score was completed."""

    format: Format = Field("jsonl", description="Score documents, or flat rows.")
    status: Status = Field("completed", description="Of the score.")
    purpose: Purpose = Field("production", description="What the score was made for.")
    latest: bool = Field(False, description="Of several completed scores of a session, the latest alone.")

    @model_validator(mode="after")
    def _is_latest_of_something(self) -> Self:
        if self.latest and self.status != "completed":
            raise ValueError("`latest` is about completed scores")
        return self


class SelectionQuery(_Range):
    """Which scores; `since` and `until` are about when the score was completed."""

    def selection(self) -> Selection:
        return Selection(self.chain, self.criteria, self.since, self.until)


class TrendsQuery(SelectionQuery):
    """Which scores, and what makes their day."""

    day_of: analytics.DayOf = Field(
        "scored", description="The day on which it was scored, or the session ended; `since` and `until` follow it."
    )


class MissingToolsQuery(SelectionQuery):
    """Which scores, and how many tools."""

    sort: analytics.ToolSort = Field("sessions", description="What makes a tool the most wanted.")
    limit: int = Field(50, ge=1, le=200, description="Tools.")


_SESSION = {
    "session_id": "7d1c6c9e",
    "chain_id": "kubernetes",
    "alert_type": "PodCrashLoop",
    "labels": {"guidance": "v2"},
    "session_status": "completed",
    "ended_at": "2026-01-05T10:05:00Z",
    "status": "in_progress",
    "score": {
        "score_id": "0d9f7b1c-3a52-4f5e-9c1a-6f2d6d1f8e10",
        "total_score": 67,
        "outcome": "pass",
        "judge_outcome": None,
        "criteria": "investigation-methodology",
        "criteria_hash": "2f1f0a6f5e0c4d3b9a8877665544332211ffeeddccbbaa998877665544332211",
        "is_current_criteria": True,
        "judge_fingerprint": "b1946ac92492d2347c6235b4d2611184",
        "flags": [],
        "failure_tags": ["incomplete_evidence"],
        "score_triggered_by": "alice",
        "scored_at": "2026-01-05T10:05:20Z",
    },
    "latest_attempt": {
        "score_id": "5b0c9a44-6f5d-4c57-9f0e-2f4d7f3f4a02",
        "status": "in_progress",
        "attempt": 1,
        "created_at": "2026-01-06T08:00:00Z",
        "current_stage": "analyzing_methodology",
        "waiting_for": None,
        "error_kind": None,
        "error_message": None,
    },
}
_LOGIC = {"criteria": "investigation-methodology", "category": "logical_flow", "average": 18.5, "count": 40}


def _example(value: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    return {200: {"content": {"application/json": {"example": value}}}}


@router.get(
    "/sessions",
    summary="List sessions with their scores",
    tags=["browsing"],
    responses=_example({"sessions": [_SESSION], "next_cursor": None}),
)
async def read_sessions(request: Request, _: Reading, query: Annotated[SessionsQuery, Query()]) -> SessionPage:
    """
    Sessions that scoring knows, each with its latest completed production score and what has become of the newest one.

    Filters on a score are about that latest completed one, but `status` is the newest one's. A page goes on behind the
    last session of the one before, so that nothing is shown twice or left out while sessions arrive.
    """
    site = site_of(request)
    filters = query.filters(query.status)
    try:
        after = None if query.cursor is None else read_cursor(query.cursor, filters, query.sort)
    except InvalidCursor as error:
        raise malformed(["query", "cursor"], str(error)) from None
    return await list_sessions(site.reader, site.policy.hashes, filters, query.sort, after, query.limit)


async def _one_of_few(request: Request) -> AsyncIterator[None]:
    """A place for an export until its last byte has been sent. Raises: Problem: 503, none is free."""
    site = served(request)
    if site.exports >= MAX_EXPORTS:
        raise Problem(
            503,
            "Too many exports",
            f"{MAX_EXPORTS} exports are under way: try again when one has ended",
            headers={"Retry-After": str(EXPORT_RETRY_S)},
        )
    site.exports += 1
    try:
        yield
    finally:
        site.exports -= 1


@router.get(
    "/export",
    summary="Export scores",
    tags=["browsing"],
    response_class=StreamingResponse,
    dependencies=[Depends(_one_of_few)],
    responses={
        200: {
            "description": "A score document a line, or CSV with a header. Cut off, it is incomplete.",
            "content": {
                "application/x-ndjson": {"schema": {"type": "string"}},
                "text/csv": {"schema": {"type": "string"}},
            },
        }
    },
)
async def export(request: Request, _: Reading, query: Annotated[ExportQuery, Query()]) -> StreamingResponse:
    """
    Scores, the newest first, streamed: every completed production score, unless the filters say otherwise.

    Filters are about the exported score itself. In CSV, what a spreadsheet would run as a formula has an apostrophe in
    front, also behind a semicolon, tab or line break in a text.
    """
    filters = query.filters(query.status)
    batches = export_scores(site_of(request).reader, filters, purpose=query.purpose, only_latest=query.latest)
    parts = written(batches, query.format)
    first, _count = await anext(parts)  # a database that is away is a refusal, and not half an answer
    disposition = f'attachment; filename="scores-{date.today():%Y-%m-%d}.{query.format}"'
    return StreamingResponse(
        _sent(first, parts),
        media_type="text/csv; charset=utf-8; header=present" if query.format == "csv" else "application/x-ndjson",
        headers={"Content-Disposition": disposition, "Cache-Control": "no-store"},
    )


async def _sent(first: bytes, parts: AsyncIterator[tuple[bytes, int]]) -> AsyncIterator[bytes]:
    yield first
    async for text, _ in parts:
        yield text


# --- analytics -----------------------------------------------------------------------------------------


@router.get(
    "/analytics/trends",
    summary="Totals per day",
    tags=["analytics"],
    responses=_example(
        {
            "points": [
                {
                    "day": "2026-01-05",
                    "judge_fingerprint": "b1946ac92492d2347c6235b4d2611184",
                    "criteria": "investigation-methodology",
                    "average": 67.5,
                    "minimum": 41,
                    "maximum": 92,
                    "count": 40,
                }
            ],
            "left_out": 1,
        }
    ),
)
async def read_trends(request: Request, _: Reading, query: Annotated[TrendsQuery, Query()]) -> Trends:
    """
    Average, lowest and highest total and their number, per UTC day and judge fingerprint.

    A session counts once, by its latest completed production score. Scores flagged `outcome_score_mismatch` or
    `tampering_suspected` stay out. Points under different fingerprints are not comparable: show a break between them.
    A session that is scored again moves to that day, unless `day_of=ended`.
    """
    return await analytics.trends(site_of(request).reader.database, query.selection(), query.day_of)


@router.get(
    "/analytics/distribution",
    summary="Totals by band",
    tags=["analytics"],
    responses=_example(
        {
            "bands": [{"band": "50-74", "low": 50, "high": 74, "count": 40, "categories": [_LOGIC]}],
            "between_bands": 0,
            "without_total": 2,
            "categories": [_LOGIC],
        }
    ),
)
async def read_distribution(request: Request, _: Reading, query: Annotated[SelectionQuery, Query()]) -> Distribution:
    """
    How many totals lie in 0-49, 50-74 and 75-100, and the averages of each category there.

    With `criteria` that have bands of their own, in these. A session counts once, by its latest completed production
    score, whatever its flags.
    """
    site = site_of(request)
    return await analytics.distribution(site.reader.database, query.selection(), bands_for(site, query.criteria))


@router.get(
    "/analytics/missing-tools",
    summary="Tools to build next",
    tags=["analytics"],
    responses=_example(
        {
            "tools": [
                {
                    "tool_name": "node_pressure",
                    "spellings": [{"name": "node_pressure", "sessions": 5}, {"name": "Node Pressure", "sessions": 2}],
                    "sessions": 7,
                    "chains": 1,
                    "by_chain": [{"chain_id": "kubernetes", "sessions": 7}],
                    "points_lost": 231,
                    "exists": False,
                }
            ],
            "tools_left_out": 0,
            "spellings_left_out": 0,
        }
    ),
)
async def read_missing_tools(
    request: Request, _: Reading, query: Annotated[MissingToolsQuery, Query()]
) -> MissingTools:
    """
    Tools that judges missed, the most wanted first: by sessions, or by the points that their scores lost.

    Spellings that differ in case, spaces, hyphens and underscores are one tool, and so are plurals and slips in long
    words; all spellings are shown. A session counts once, by its latest completed production score; where it asked for
    several tools, each has lost all of its points. `exists` looks at what the sessions judged last have called.
    """
    database = site_of(request).reader.database
    return await analytics.missing_tools(database, query.selection(), query.sort, query.limit)


@router.get(
    "/analytics/failure-tags",
    summary="Failure tags",
    tags=["analytics"],
    responses=_example(
        {
            "scores": 50,
            "tags": [
                {
                    "tag": "incomplete_evidence",
                    "count": 10,
                    "share": 0.2,
                    "chains": 1,
                    "by_chain": [{"chain_id": "kubernetes", "count": 10, "share": 0.25}],
                }
            ],
        }
    ),
)
async def read_failure_tags(request: Request, _: Reading, query: Annotated[SelectionQuery, Query()]) -> FailureTags:
    """
    How many scores have each failure tag, and which share of them, in all and per chain.

    A session counts once, by its latest completed production score.
    """
    return await analytics.failure_tags(site_of(request).reader.database, query.selection())


def bands_for(site: Site, criteria: str | None) -> tuple[Band, ...]:
    """The criteria's own bands, where they are known and have some; else those of the badges."""
    return bands_of(site.registry.get(criteria).bands if criteria and criteria in site.registry else {})
