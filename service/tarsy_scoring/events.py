"""
Kafka messages: their models, their decoding and their identity.

Every message has version 1. Both sides ignore unknown fields, so producers and consumers can be upgraded
independently. A field is only ever added, with a default.
"""

import re
import uuid
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from datetime import datetime
from hashlib import sha256
from itertools import islice
from typing import Annotated, Any, Literal, Self, TypeVar

import structlog
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import from_json

from tarsy_scoring.errors import InvalidMessage
from tarsy_scoring.postgres.moments import moment

# Match with `fullmatch`: `$` would let a trailing newline pass.
SESSION_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,254}")

SOURCE_COMPLETED = "session-completed"
SOURCE_RESCORE = "rescore-requested"

SessionId = Annotated[
    str, Field(pattern=f"^{SESSION_ID_PATTERN.pattern}$", description="Also the message key.")
]
EventId = Annotated[str, Field(min_length=1, max_length=255)]
BOTH_REFERENCES = "`reference` and `use_reference: false` exclude each other"
MAX_REFERENCE_CHARACTERS, MAX_URL_CHARACTERS = 20_000, 2000
MAX_LABELS, MAX_LABEL_NAME, MAX_LABEL_VALUE = 50, 100, 1000
MAX_REFERENCES = 10  # of a session, apart from those that a score was judged against
UNNAMED = ("auto", "event")  # requested by events that name no person
_log = structlog.get_logger()
# Producers that always send a field may send it empty; that means the same as null.
_OR_EMPTY = BeforeValidator(lambda v: None if v == "" else v)
Name = Annotated[str | None, Field(max_length=255), _OR_EMPTY]


def _bounded(value: object, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> datetime | None:
    """A time that cannot be, such as a zero time, is absent: it must not cost the event."""
    if isinstance(value, str) and _TIME.fullmatch(value):
        return moment(value, f"{info.field_name} of a message")
    return moment(handler(value), f"{info.field_name} of a message")


_TIME = re.compile(r"[+-]?[0-9]{4,9}-[0-9]{2}-[0-9]{2}[Tt ].*")
Moment = Annotated[datetime | None, WrapValidator(_bounded)]


def bounded_labels(labels: Mapping[str, str], session_id: str | None = None) -> dict[str, str]:
    """
    The first `MAX_LABELS` labels with a name and a value that are not too long.

    Args:
        session_id: Of the session that they describe. With it, a warning tells how many are left out.
    """
    short = (
        pair for pair in labels.items() if len(pair[0]) <= MAX_LABEL_NAME and len(pair[1]) <= MAX_LABEL_VALUE
    )
    kept = dict(islice(short, MAX_LABELS))
    if session_id is not None and len(kept) < len(labels):
        _log.warning("labels.left_out", session_id=session_id, labels=len(labels) - len(kept))
    return kept


def sender_of_event(name: str) -> str:
    """The sender in words, so that a name that an event claims does not look like a signed-in person's."""
    return name if name in UNNAMED else f"event: {name}"


Labels = Annotated[
    dict[str, str], AfterValidator(lambda labels, info: bounded_labels(labels, info.data.get("session_id")))
]
Purpose = Literal["production", "consistency", "anchor", "shadow"]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class _Model(BaseModel):
    # No process needs all of these models, and many need none.
    model_config = ConfigDict(defer_build=True)


class _Incoming(_Model):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, hide_input_in_errors=True)


# One host and no user, so that no link holds a password; ASCII, as browsers copy addresses.
_WEB_ADDRESS = (
    r"^[Hh][Tt][Tt][Pp][Ss]?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:[/?#][!-~]*)?$"
)
_A_TEXT = r"^[^\x00]*[^\x00\s][^\x00]*$"


def _check_address(text: str | None) -> str | None:
    if text is not None and re.fullmatch(_WEB_ADDRESS.removesuffix("$"), text) is None:
        raise ValueError("is not an address that begins with http:// or https://, without user and blanks")
    return text


class GivenReference(_Incoming):
    """What people found out about an incident later. The judge judges against it."""

    text: Annotated[
        str,
        Field(
            min_length=1,
            max_length=MAX_REFERENCE_CHARACTERS,
            pattern=_A_TEXT,
            description="The cause as it is known now. Secrets in it are masked before it is stored.",
        ),
    ]
    source_url: Annotated[
        Annotated[str, Field(max_length=MAX_URL_CHARACTERS, json_schema_extra={"pattern": _WEB_ADDRESS})]
        | None,
        _OR_EMPTY,
        AfterValidator(_check_address),
    ] = Field(None, description="Where it is written, e.g. the ticket; http or https.")
    provided_by: Name = Field(
        None, pattern=r"^[^\x00]*$", description="Who found out; default: who sends it."
    )
    provided_at: Moment = Field(None, strict=False, description="When; default: when it arrives.")


# Both at once would contradict each other.
_NOT_BOTH: dict[str, Any] = {
    "not": {
        "required": ["reference", "use_reference"],
        "properties": {"reference": {"type": "object"}, "use_reference": {"const": False}},
    }
}


class Referring(_Model):
    """The fields of a request about references."""

    model_config = ConfigDict(json_schema_extra=_NOT_BOTH)

    reference: GivenReference | None = Field(None, description="Judge against it; implies a new score.")
    use_reference: bool | None = Field(
        True,
        description="False: judge without the reference that is stored for the session, if there is one. "
        "Implies a new score, and excludes `reference`.",
    )

    @model_validator(mode="after")
    def _refers_once(self) -> Self:
        if self.reference is not None and self.use_reference is False:
            raise ValueError(BOTH_REFERENCES)
        return self


class SessionCompleted(_Incoming):
    """A session has ended (`session-completed`, version 1). A field that is null counts as absent."""

    session_id: SessionId
    event_id: EventId | None = Field(None, description="Two messages with the same one are the same event.")
    type: Literal["session.completed"] | None = Field("session.completed")
    status: Annotated[str, Field(max_length=255)] | None = Field(
        "completed",
        description="`completed`, `failed`, `cancelled` or `timed_out`; others are recorded, not scored.",
    )
    chain_id: Name = Field(
        None, description="Decides criteria and settings; null: the session's stored chain does."
    )
    alert_type: Name = None
    completed_at: Moment = None
    labels: Labels | None = Field(
        None, description='For comparisons, e.g. `{"guidance": "v2"}`; 50, of 100 and 1,000 characters.'
    )
    timestamp: Moment = None


class RescoreRequested(Referring, _Incoming):
    """A request to score a session again (`rescore-requested`, version 1)."""

    session_id: SessionId
    event_id: EventId | None = Field(None, description="Two messages with the same one are the same event.")
    type: Literal["scoring.rescore_requested"] | None = Field("scoring.rescore_requested")
    requested_by: Annotated[str, Field(max_length=255)] | None = Field(
        "event", description="Stored with the score."
    )
    force: bool | None = Field(True, description="False: only if there is no score under these criteria.")
    criteria: Name = Field(None, description="Name of the criteria; default the chain's.")
    reason: Annotated[str, Field(max_length=4000)] | None = None


# --- out -----------------------------------------------------------------------------------------------

EventType = Literal[
    "scoring.started", "scoring.progress", "scoring.completed", "scoring.failed", "scoring.request_superseded"
]


class Usage(_Model):
    """Sums over the turns of a score; null where a turn did not report it."""

    input_tokens: Count | None = None
    cached_input_tokens: Count | None = None
    output_tokens: Count | None = None
    cost_usd: Annotated[float, Field(ge=0)] | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """
    Counts all commands, or those of a tool or subcommand. Rates are None where there are no commands.
    """

    total_commands: Count
    unique_commands: Count
    error_count: Count
    retry_count: Count
    help_invocations: Count
    repeated_after_failure: Count
    error_rate: Share | None
    retry_rate: Share | None
    first_try_success_rate: Share | None  # new commands that succeeded / all commands; repetition lowers it
    iteration_ratio: Share | None


@dataclass(frozen=True, slots=True)
class InteractionTotals(Counts):
    """Measured facts about the tool calls of a session; a rate is null where there was no command."""

    completed: Annotated[bool, Field(description="Whether the session ended as `completed`.")]


class ScoringCompleted(_Model):
    """A completed score was stored. Each score ends with this event or with `scoring.failed`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    event_id: str = Field(description="Drop an event whose id was seen: delivery is at least once.")
    sequence: int = Field(ge=1, description="Grows by one within a score.")
    position: int = Field(
        ge=1, description="Grows by one over all events; the `last_event_id` of the gateway."
    )
    purpose: Purpose
    score_id: str
    session_id: str
    request_id: str
    chain_id: str | None
    attempt: int = Field(ge=0)
    timestamp: datetime
    timestamp_us: int = Field(description="The same moment in microseconds since 1970.")
    left_out: list[str] = Field(
        [],
        description="Fields that are empty or absent here, since the topic does not allow so large an event.",
    )
    type: Literal["scoring.completed"]
    total_score: int | None = Field(ge=0, le=100, description="Null where the chain has no judge.")
    outcome: Literal["pass", "fail"] | None
    criteria: str
    criteria_hash: str
    judge_fingerprint: str | None
    failure_tags: list[str]
    flags: list[str]
    usage: Usage
    judge_outcome: str | None = Field(None, description="Id of the band that the judge stated.")
    summary: str | None = Field(
        None, description="First sentence of the judge's section about the outcome, else of the analysis."
    )
    composite_score: float | None = Field(
        None, ge=0, le=100, description="Only where the chain declares weights."
    )
    gates_passed: int | None = Field(
        None, ge=0, description="Gates that passed; null in events of older versions."
    )
    gates_total: int | None = Field(None, ge=0)
    interaction: InteractionTotals | None = Field(
        None, description="Over all tools; the score also has it per tool."
    )
    score_triggered_by: str
    alert_type: str | None
    labels: dict[str, str]
    # Read by rolling windows, which must see the same time as queries over the table.
    completed_at: datetime | None = Field(
        None,
        description="`completed_at` of the score, just before `timestamp`; null in events of older versions.",
    )
    has_reference: bool = Field(
        False, description="Judged against a reference, so not comparable with scores without one."
    )


# --- decoding ------------------------------------------------------------------------------------------

M = TypeVar("M", bound=_Incoming)
# A broker bounds the compressed size alone. Decoding may take 25 times the bytes of a value.
MAX_BYTES = 10 * 1024 * 1024
# The JSON escape of NUL. After an odd number of backslashes `u0000` is plain text.
_ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def decode(model: type[M], value: bytes | None) -> M:
    """Decode a message. Raises: InvalidMessage: The `reason` is the value of the header `scoring-error`."""
    if not value:
        raise InvalidMessage("empty", "the message has no value")
    if len(value) > MAX_BYTES:
        raise InvalidMessage(
            "too_large", f"the value has {len(value):,} bytes; at most {MAX_BYTES:,} are decoded"
        )
    try:
        value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidMessage("not_utf8", f"the value is not UTF-8 (byte {error.start})") from None
    try:
        document = from_json(value, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidMessage("not_json", f"the value is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidMessage("not_an_object", f"expected a JSON object, found {type(document).__name__}")
    if _ESCAPED_NUL.search(value):  # PostgreSQL cannot store it
        raise InvalidMessage("nul_character", "a text in the message holds a NUL character")
    try:
        return model.model_validate_json(value)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        # Only the top-level field: the path below it (a label's key) is the producer's text, of any
        # length.
        where = str(first["loc"][0]) if first["loc"] else "message"
        raise InvalidMessage("invalid_field", f"{where}: {first['msg']}") from None


# --- identity ------------------------------------------------------------------------------------------

_NAMESPACE = uuid.UUID("6f0c2d2e-0b57-5f0e-9a4e-6b1f3f6c9d11")  # never change: it would make old events new


@dataclass(frozen=True, slots=True)
class Origin:
    """A record's position in Kafka; a replayed record keeps the original's position."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


def request_id_of(
    kind: str, event: SessionCompleted | RescoreRequested, origin: Origin, value: bytes | None
) -> uuid.UUID:
    """
    Request id of a message: the same kind, session and event id give the same request id for ever.

    Without an event id the record identifies it. Timestamp and value count as well: after a topic was
    recreated the offsets start again, and new records must not look like repeated ones.
    """
    parts = ["event", kind, event.session_id, event.event_id or ""]
    if not event.event_id:
        parts = [
            *("record", kind, event.session_id),
            *map(str, astuple(origin)),
            sha256(value or b"").hexdigest(),
        ]
    return uuid.uuid5(_NAMESPACE, "\x1f".join(parts))


def cloudevents_headers(payload: Mapping[str, Any]) -> list[tuple[str, bytes]]:
    """
    Kafka headers with the CloudEvents 1.0 attributes of an event; the subject is the session, if any.

    Source: Kafka protocol binding for CloudEvents 1.0.2, section 3.2 (binary mode).
    """
    at = payload["timestamp"]
    headers = [
        ("ce_specversion", b"1.0"),
        ("ce_id", str(payload["event_id"]).encode()),
        ("ce_source", b"/tarsy-scoring"),
        ("ce_type", str(payload["type"]).encode()),
        ("ce_time", (at.isoformat() if isinstance(at, datetime) else str(at)).encode()),
        ("content-type", b"application/json"),
    ]
    if "session_id" in payload:
        headers.append(("ce_subject", str(payload["session_id"]).encode()))
    return headers
