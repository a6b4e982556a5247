"""Types for setting values, each with the rules that a value must fulfil."""

import re
from contextlib import suppress
from typing import Annotated, Literal
from urllib.parse import urlsplit

import re2
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
)


class Frozen(BaseModel):
    """Base record: refuses unknown keys, and no message or representation shows a value."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )


def compile_pattern(pattern: str) -> "re2._Regexp":
    """
    Compile an RE2 pattern. A search takes time linear in the text.

    Searches `str` and UTF-8 `bytes` alike; use bytes for a text that may hold lone surrogates.

    Raises:
        ValueError: Not a regular expression of RE2; with the reason.
    """
    options = re2.Options()
    options.log_errors = False  # RE2 would write to stderr
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else "unknown reason"
        words = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"not a regular expression of RE2: {words}") from None


def not_blank(text: str) -> str:
    """Return the text unchanged. Raises: ValueError: It is blank, or holds NUL."""
    if not text.strip():
        raise ValueError("must not be blank")
    if "\0" in text:
        raise ValueError("must not hold NUL")
    return text


_HTTP_URL = re.compile(r"(?i)https?://[^/?#@\s]+(?:/[^?#\s]*)?")
_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[^\s,:/?#@\[\]]*)(?::\d{1,5})?"
_POSTGRESQL_URL = re.compile(rf"postgres(?:ql)?://(?:[^/?#]*@)?{_HOST}(?:,{_HOST})*(?:[/?]|$)")
_BROKER = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s,:/\[\]]+)(?::(?P<port>\d{1,5}))?")


def _http_url(value: str) -> str:
    """Require host and path only: a user, a password or a query would be lost or break calls."""
    with suppress(ValueError):
        place = urlsplit(value)
        if _HTTP_URL.fullmatch(value) and place.hostname and place.port != 0:
            return value.rstrip("/")
    raise ValueError("expected https://host:port/path, without user, password or query in it")


def _postgresql_url(value: SecretStr) -> SecretStr:
    """Reject a malformed database URL at start; later it would look like a database that never answers."""
    if not _POSTGRESQL_URL.match(value.get_secret_value()):
        raise ValueError("expected postgresql://user:password@host:5432/database")
    return value


def _broker_list(value: str) -> str:
    for place in value.split(","):
        found = _BROKER.fullmatch(place.strip())
        if found is None or not 0 < int(found["port"] or 9092) < 65_536:
            raise ValueError("expected host:port, several separated by commas, each port from 1 to 65535")
    return value


def _finds_some_text(value: str) -> str:
    if compile_pattern(value).search("") is not None:
        raise ValueError("matches the empty text, so it would match everywhere")
    return value


def _directory_name(value: str) -> str:
    if set(not_blank(value).replace("{session_id}", "")) & {"{", "}"}:
        raise ValueError("may hold `{session_id}`, and nothing else in braces")
    return value


def _off_as_none(value: object) -> object:
    return None if value is False or value == "off" else value  # YAML reads a bare `off` as false


def _switch(value: object) -> object:
    return value["enabled"] if isinstance(value, dict) and value.keys() == {"enabled"} else value


Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
HttpUrl = Annotated[str, AfterValidator(_http_url)]
DatabaseUrl = Annotated[SecretStr, AfterValidator(_postgresql_url)]
Brokers = Annotated[str, AfterValidator(_broker_list)]
Notes = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=4000)]
FindingPattern = Annotated[str, AfterValidator(_finds_some_text)]
SecretKind = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,19}$")]
WorkDir = Annotated[str, AfterValidator(_directory_name)]
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")]
Topic = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]*[A-Za-z0-9_-][A-Za-z0-9._-]*$", max_length=249)]
NotBlank = Annotated[str, AfterValidator(not_blank)]
Days = Annotated[int, Field(ge=1, le=36_500)]
Usd = Annotated[float, Field(ge=0)]
Total = Annotated[float, Field(ge=0, le=100)]
SecondOpinions = Annotated[Literal["edges"] | None, BeforeValidator(_off_as_none)]
Switch = Annotated[bool, BeforeValidator(_switch)]
Port = Annotated[int, Field(ge=0, le=65_535)]
SchemaName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]
Statuses = tuple[Literal["completed", "failed", "cancelled", "timed_out"], ...]
LogFormat = Literal["json", "console"]
Security = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
