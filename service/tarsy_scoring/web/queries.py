"""
Query parameters for API and pages, as one set of models.

The API declares a model with `Annotated[Model, Query()]`. A page reads its form with `read_form` into the
same model, so that both accept the same values and refuse the same mistakes.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Any, Generic, Literal, Self, TypeVar
from uuid import UUID

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from starlette.datastructures import QueryParams

from tarsy_scoring.analytics.analytics import DayOf
from tarsy_scoring.analytics.daily import Selection
from tarsy_scoring.events import Purpose
from tarsy_scoring.postgres.moments import FIRST, LAST
from tarsy_scoring.scores.export import Format
from tarsy_scoring.scores.latest import Kind
from tarsy_scoring.scores.session_list import LONGEST_CURSOR, Filters, Sort

Status = Literal["pending", "in_progress", "completed", "failed", "timed_out", "cancelled"]


def _in_utc(moment: datetime) -> datetime:
    return min(max(moment, FIRST), LAST).astimezone(UTC)


def _labels(pairs: list[str]) -> list[str]:
    names = [pair.partition("=")[0] for pair in pairs]
    if len(set(names)) < len(names):
        raise ValueError("a label is given with two values")
    return pairs


def _as_text(value: object) -> object:
    """Refuse days, and numbers, which pydantic reads as seconds since 1970."""
    if str(value)[4:5] != "-" or len(str(value)) <= len("2026-11-24"):
        raise ValueError("not a time in RFC 3339, such as 2026-11-24T00:00:00Z")
    return value


Time = Annotated[AwareDatetime, BeforeValidator(_as_text)]
Moment = Annotated[Time, AfterValidator(_in_utc)]
Word = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00]+$")]
Total = Annotated[int, Field(ge=0, le=100)]
# Parameter types that may be left out. The schema does not mention null, which no address can hold.
OptionalMoment = Moment | SkipJsonSchema[None]
OptionalTotal = Total | SkipJsonSchema[None]
OptionalWord = Word | SkipJsonSchema[None]
Label = Annotated[str, Field(min_length=2, max_length=1000, pattern=r"^[^\x00=]+=[^\x00]*$")]


class Parameters(BaseModel):
    """Base for all query models: an unknown parameter is an error, and an error never quotes the value."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class _Range(Parameters):
    """A chain, criteria and a time range. Each model documents which time the range applies to."""

    chain: OptionalWord = Field(None, description="Name of a chain.", examples=["kubernetes"])
    criteria: OptionalWord = Field(None, description="Name of the criteria of the score.")
    since: OptionalMoment = Field(None, description="From this time on (RFC 3339; write + as %2B).")
    until: OptionalMoment = Field(None, description="Before this time (RFC 3339).")

    @model_validator(mode="after")
    def _require_since_before_until(self) -> Self:
        if self.since and self.until and self.since >= self.until:
            raise ValueError("`since` must be before `until`")
        return self


class _ScoreFilters(_Range):
    """Filters that lists and exports share."""

    min_score: OptionalTotal = Field(None, description="Total of at least this.")
    max_score: OptionalTotal = Field(None, description="Total of at most this.")
    alert_type: OptionalWord = Field(None, description="Alert type of the session.")
    label: Annotated[list[Label], AfterValidator(_labels)] = Field(
        [],
        max_length=10,
        description="NAME=VALUE; all that are given must match.",
        examples=[["guidance=v2"]],
    )
    flag: OptionalWord = Field(None, description="A flag of the score.", examples=["injection_suspected"])
    outcome: Literal["pass", "fail"] | SkipJsonSchema[None] = Field(None, description="Outcome of the score.")
    q: OptionalWord = Field(None, description="Beginning of the session id or alert type, in any case.")

    @model_validator(mode="after")
    def _require_min_not_above_max(self) -> Self:
        if self.min_score is not None and self.max_score is not None and self.min_score > self.max_score:
            raise ValueError("`min_score` must not be above `max_score`")
        return self

    def filters(self, status: str | None) -> Filters:
        """The parameters as filters on the score tables."""
        labels = dict(pair.split("=", 1) for pair in self.label)
        same = self.model_dump(include={f.name for f in dataclasses.fields(Filters)} - {"status"})
        return Filters(status=status, labels=labels, prefix=self.q, **same)


class SessionsQuery(_ScoreFilters):
    """Session filters; `since` and `until` apply to when the session ended."""

    status: Status | Literal["nothing_to_judge", "not_scored"] | SkipJsonSchema[None] = Field(
        None, description="Status of the newest score; `nothing_to_judge`: the session has no investigation."
    )
    sort: Sort = Field("newest", description="By end of the session, or, for sessions with a total, by that.")
    cursor: Annotated[str, Field(max_length=LONGEST_CURSOR)] | SkipJsonSchema[None] = Field(
        None, description="`next_cursor` of the page before, with the same filters and sort."
    )
    limit: int = Field(50, ge=1, le=200, description="Sessions per page.")


class ExportQuery(_ScoreFilters):
    """
    Score filters; `since` and `until` apply to when the score was completed, not to when the session ended.
    """

    format: Format = Field("jsonl", description="Score documents, or flat rows.")
    status: Status = Field("completed", description="Status of the score.")
    purpose: Purpose = Field("production", description="Purpose of the score.")
    latest: bool = Field(False, description="Only the latest completed score of each session.")
    labelled: bool = Field(False, description="Only scores that people have labelled.")
    exclude: list[Literal["injection_suspected"]] = Field([], max_length=1, description="Not with this flag.")

    @model_validator(mode="after")
    def _require_completed_for_latest(self) -> Self:
        if self.latest and self.status != "completed":
            raise ValueError("`latest` needs the status completed")
        return self

    @property
    def chosen(self) -> tuple[Any, ...]:
        """The parameters as `export_scores` takes them."""
        return *self.filters(self.status).arguments, self.purpose, self.latest, self.labelled, self.exclude

    @property
    def audited(self) -> dict[str, Any]:
        """The export as the audit record describes it; filter values could be session ids."""
        return {"format": self.format, "filters": sorted(self.model_fields_set - {"format"})}


class SelectionQuery(_Range):
    """Score filters; `since` and `until` apply to when the score was completed."""

    def selection(self) -> Selection:
        """The parameters as a selection to analyse."""
        names = {f.name for f in dataclasses.fields(Selection)}
        return Selection(**self.model_dump(include=names))


class ScoresQuery(SelectionQuery):
    """Filters for scores with or without a reference."""

    reference: Kind = Field("without", description="Scores judged without a reference, or with one.")


class TrendsQuery(ScoresQuery):
    """Score filters, and which time gives a score the day."""

    day_of: DayOf = Field("scored", description="Day and time range: of the score, or of the session's end.")


class MissingToolsQuery(SelectionQuery):
    """Score filters, and how many tools."""

    limit: int = Field(50, ge=1, le=200, description="Number of tools.")


class HistoryQuery(Parameters):
    """A page from one session's history."""

    limit: int = Field(50, ge=1, le=200)
    cursor: str | None = Field(None, max_length=200, description="`next_cursor` of the page before.")
    purpose: Purpose | None = Field(None, description="Purpose of the scores; default: every purpose.")


class TimelineQuery(Parameters):
    """Which timeline entries are shown, and the score whose citations mark them."""

    score: UUID | None = Field(None, description="A score of the session; default: its latest completed one.")
    show: Literal["errors", "cited", "suspicious"] | None = Field(
        None, description="What failed, what the judge cites, or text that tries to steer the judge."
    )
    at: str | None = Field(None, pattern=r"^E[1-9][0-9]{0,5}$", description="The entry to open.")
    blind: Literal["1"] | None = Field(None, description="Without a score, for a reviewer.")


class CompareQuery(Parameters):
    """Two scores for one session."""

    a: UUID = Field(description="The score on the left.")
    b: UUID = Field(description="The score on the right.")


class TrustQuery(Parameters):
    """Trust-card filters."""

    criteria: OptionalWord = Field(None, description="Only judges under criteria of this name.")
    fingerprint: OptionalWord = Field(None, description="Only the judge with this fingerprint.")


async def known_parameters_once(request: Request) -> None:
    """
    Refuse repeated and unknown query parameters; a dependency for every route under `/api/v1/scoring`.

    Raises:
        RequestValidationError: A parameter other than `label` appears twice, or the route has no parameters.
    """
    # The framework ignores parameters if a route declares none, and takes the last of two values, so it
    # would answer another question than the caller meant. A query model refuses unknown parameters itself.
    has_model = bool(request.scope["route"].dependant.query_params)
    times = Counter(name for name, _ in request.query_params.multi_items())
    faults = [
        {"type": "repeated", "loc": ("query", name), "msg": "given more than once"}
        for name, count in times.items()
        if has_model and count > 1 and name != "label"
    ]
    if not has_model:
        message = "Extra inputs are not permitted"  # as pydantic writes it
        faults = [{"type": "extra_forbidden", "loc": ("query", name), "msg": message} for name in times]
    if faults:
        raise RequestValidationError(faults)


# --- page forms --------------------------------------------------------------------------------------

Q = TypeVar("Q", bound=Parameters)
DAYS = ("since", "until")


@dataclass(frozen=True, slots=True)
class Form(Generic[Q]):
    """
    A page's form as read from the address.

    Args:
        values: Field texts as given, to fill the form again; "" where it is empty or missing.
        query: The fields as an API query; None if there are faults.
        faults: Errors for the user, one sentence per field.
    """

    values: Mapping[str, str]
    query: Q | None
    faults: list[str]


def read_form(query_string: bytes, model: type[Q], names: Collection[str] = ()) -> Form[Q]:
    """
    Read a page address into an API query.

    An empty field counts as missing. `since` and `until` hold days in UTC, and the last day is included.
    Unknown fields are faults, since a page that ignores a filter shows more than was asked for.

    Args:
        query_string: As received.
        names: Form fields; empty: all that the model has.
    """
    names = names or model.model_fields
    params = QueryParams(query_string)
    values = dict.fromkeys(names, "") | {n: value.strip() for n, value in params.items() if n in names}
    faults = [f"{name}: given more than once" for name in names if len(params.getlist(name)) > 1]
    if any(value and name not in names for name, value in params.items()):
        faults.append(f"the address has a field that this page does not have; it has {', '.join(names)}")
    given: dict[str, Any] = {name: value for name, value in values.items() if value}
    for name in (name for name in DAYS if name in given):
        if (moment := _start_of_range(given[name], is_end=name == "until")) is None:
            faults.append(f"{name}: expected a day such as 2026-01-31")
        given[name] = moment
    if "label" in given:
        given["label"] = [re.sub(r"\s*=\s*", "=", given["label"], count=1)]
    try:
        query = model.model_validate(given)
    except ValidationError as error:
        return Form(values, None, [*faults, *_in_sentences(error)])
    return Form(values, None if faults else query, faults)


def _in_sentences(error: ValidationError) -> Iterator[str]:
    """One error per field."""
    # An optional field gives one error per alternative. The last one is about None, the first one counts.
    messages: dict[tuple[str | int, ...], str] = {}
    for fault in error.errors(include_url=False, include_input=False):
        messages.setdefault(fault["loc"][:1], str(fault["msg"]).removeprefix("Value error, "))
    for where, message in messages.items():
        yield ": ".join([*map(str, where), message])


def _start_of_range(day: str, *, is_end: bool) -> datetime | None:
    """Midnight at which days begin, or end if `is_end`; None: not a day."""
    try:
        return datetime.combine(date.fromisoformat(day), time(), UTC) + timedelta(days=is_end)
    except (ValueError, OverflowError):
        return None
