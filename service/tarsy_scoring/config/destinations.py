"""
Settings of destinations: where notifications and scores are sent.

Addresses come from here alone, never from an event. The address of a webhook may be a secret by itself, so
the file
names the variable or the file that holds it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from tarsy_scoring.config.urls import is_plain_http
from tarsy_scoring.config.values import not_blank

DestinationType = Literal["webhook", "slack", "langfuse"]
NoticeType = Literal["score_below", "drift", "budget_spent"]
NOTICE_TYPES: tuple[NoticeType, ...] = ("score_below", "drift", "budget_spent")

_NOTIFIES = {"type", "url_env", "url_file", "events", "score_below", "chains", "ca_file"}
_KEYS: dict[str, set[str]] = {
    "webhook": _NOTIFIES | {"secret_env", "secret_file"},
    "slack": _NOTIFIES,
    "langfuse": {
        "type",
        "base_url",
        "public_key",
        "secret_env",
        "secret_file",
        "trace_label",
        "chains",
        "ca_file",
    },
}


def _base_url(value: str) -> str:
    if not is_plain_http(value):
        raise ValueError("expected https://host:port, without user, password or query in it")
    return value.rstrip("/")


DestinationName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]
_NotBlank = Annotated[str, AfterValidator(not_blank)]
_BaseUrl = Annotated[str, AfterValidator(_base_url)]


class DestinationSettings(BaseModel):
    """A webhook, a Slack channel or a Langfuse project. Each type has keys of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    type: DestinationType = Field(description="Its keys: see [notifications](notifications.md).")
    url_env: _NotBlank | None = Field(None, description="`webhook`, `slack`: variable with the address.")
    url_file: Path | None = Field(None, description="File with the address, instead of a variable.")
    base_url: _BaseUrl | None = Field(
        None, description="`langfuse`: the server, such as `https://cloud.langfuse.com`."
    )
    public_key: _NotBlank | None = Field(None, description="`langfuse`: the public key of the project.")
    secret_env: _NotBlank | None = Field(
        None,
        description="`webhook`: variable with the key of the signatures; `langfuse`: with the secret key.",
    )
    secret_file: Path | None = Field(None, description="File with that key, instead of a variable.")
    events: Annotated[tuple[NoticeType, ...], Field(min_length=1)] = Field(
        NOTICE_TYPES, description="`webhook`, `slack`: what they are notified of."
    )
    score_below: Annotated[float, Field(ge=0, le=100)] | None = Field(
        None, description="Totals below this number are notified of; `null`: scores with the outcome `fail`."
    )
    chains: tuple[_NotBlank, ...] = Field((), description="Only these chains; `[]`: all.")
    trace_label: _NotBlank | None = Field(
        None,
        description="`langfuse`: label of a session that holds its trace id there; without it: the session id.",
    )
    ca_file: Path | None = Field(None, description="CA bundle for a private server.")

    @model_validator(mode="wrap")
    @classmethod
    def _has_the_keys_of_its_type(cls, given: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        # Around the validation of the values, so that faults of keys are reported together with those of
        # values.
        faults = [
            InitErrorDetails(
                type=PydanticCustomError("keys", "{fault}", {"fault": fault}), loc=(), input=None
            )
            for fault in _faults_of_keys(given)
        ]
        try:
            destination = validate(given)
        except ValidationError as error:
            faults[:0] = [
                InitErrorDetails(
                    type=fault["type"], loc=fault["loc"], input=fault["input"], ctx=fault.get("ctx", {})
                )
                for fault in error.errors(include_url=False)
            ]
        if faults:
            raise ValidationError.from_exception_data(cls.__name__, faults, hide_input=True)
        return destination


def _faults_of_keys(given: Any) -> Iterator[str]:
    """
    What the keys of a destination lack, or have too much of, by its type; nothing where it has no known type.
    """
    of_type = given.get("type") if isinstance(given, dict) else None
    if not isinstance(of_type, str) or of_type not in _KEYS:
        return
    keys, what = _KEYS[of_type], f"a destination of the type {of_type}"
    foreign = DestinationSettings.model_fields.keys() & given.keys() - keys
    yield from (f"{what} has no key {name}" for name in sorted(foreign))
    lacking = [name for name in ("base_url", "public_key") if name in keys and given.get(name) is None]
    yield from (f"{what} needs {name}" for name in lacking)
    for name in ("url", "secret"):
        places = [f"{name}_{place}" for place in ("env", "file")]
        if places[0] in keys and sum(given.get(place) is not None for place in places) != 1:
            yield f"{what} needs either {places[0]} or {places[1]}"
