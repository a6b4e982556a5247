"""
Settings of destinations: where notifications and scores are sent.

Addresses come from here alone, never from an event. The address of a webhook may be a secret by itself, so the file
names the variable or the file that holds it.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from tarsy_scoring.config.gates import not_blank
from tarsy_scoring.config.urls import is_plain_http

DestinationType = Literal["webhook", "slack", "langfuse"]
NoticeType = Literal["score_below", "drift", "budget_spent"]
NOTICE_TYPES: tuple[NoticeType, ...] = ("score_below", "drift", "budget_spent")

_NOTIFIES = {"type", "url_env", "url_file", "events", "score_below", "chains", "ca_file"}
_KEYS: dict[DestinationType, set[str]] = {
    "webhook": _NOTIFIES | {"secret_env", "secret_file"},
    "slack": _NOTIFIES,
    "langfuse": {"type", "base_url", "public_key", "secret_env", "secret_file", "trace_label", "chains", "ca_file"},
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
    base_url: _BaseUrl | None = Field(None, description="`langfuse`: the server, such as `https://cloud.langfuse.com`.")
    public_key: _NotBlank | None = Field(None, description="`langfuse`: the public key of the project.")
    secret_env: _NotBlank | None = Field(
        None, description="`webhook`: variable with the key of the signatures; `langfuse`: with the secret key."
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
        None, description="`langfuse`: label of a session that holds its trace id there; without it: the session id."
    )
    ca_file: Path | None = Field(None, description="CA bundle for a private server.")

    @model_validator(mode="after")
    def _has_the_keys_of_its_type(self) -> Self:
        keys = _KEYS[self.type]
        if foreign := sorted(self.model_fields_set - keys):
            raise ValueError(f"a destination of the type {self.type} has no key {foreign[0]}")
        for name in ("base_url", "public_key"):
            if name in keys and getattr(self, name) is None:
                raise ValueError(f"a destination of the type {self.type} needs {name}")
        for name in ("url", "secret"):
            given = [getattr(self, f"{name}_{place}") is not None for place in ("env", "file")]
            if f"{name}_env" in keys and sum(given) != 1:
                raise ValueError(f"a destination of the type {self.type} needs either {name}_env or {name}_file")
        return self
