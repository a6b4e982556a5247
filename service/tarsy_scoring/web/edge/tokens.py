"""
Bearer tokens for the API: a file with names, SHA-256 digests and scopes, reloaded when it changes.

The file holds digests only, so that reading it does not give access.
"""

import hashlib
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Literal

import structlog
import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from tarsy_scoring.config.hosts import is_loopback
from tarsy_scoring.config.watched_file import WatchedFile
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.timeline.text import without_invisible
from tarsy_scoring.web.edge.caller import ALL_SCOPES, READ_ONLY, Scope

log = structlog.get_logger()

NAME_MAX = 255
SOON_DAYS = 14
TokenState = Literal["valid", "expires soon", "expired"]


def is_name(text: str) -> bool:
    """Whether the text can name a caller: 1-255 visible characters, no blank at either end."""
    return (
        0 < len(text) <= NAME_MAX and text.isprintable() and text.strip() == text == without_invisible(text)
    )


def bearer_token(headers: Headers) -> bytes | None:
    """
    The token in the `Authorization` header; None: there is no bearer token, or there are several headers.
    """
    values = headers.getlist("authorization")
    scheme, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    return token.strip().encode("latin-1") if scheme.lower() == "bearer" else None


def cookie_name(connection: HTTPConnection) -> str:
    """
    The cookie that holds a browser's token.

    Beyond loopback it has a prefix: browsers take such a cookie only from this host itself, with `Secure`, so
    that no neighbouring host can sign a user in.
    """
    is_local = is_loopback(connection.url.hostname or "") and "x-forwarded-proto" not in connection.headers
    return "tarsy-scoring" if is_local else "__Host-tarsy-scoring"


def sent_token(connection: HTTPConnection, *, is_signed_in: bool) -> bytes | None:
    """The bearer token; without one, and without a user of a proxy, that of the cookie; or None."""
    token = bearer_token(connection.headers)
    if token is not None or is_signed_in:
        return token
    return connection.cookies.get(cookie_name(connection), "").encode() or None


def utc_today() -> date:
    """The day on which tokens expire."""
    return datetime.now(UTC).date()


def _valid_name(text: str) -> str:
    if not is_name(text):
        raise ValueError(f"expected 1-{NAME_MAX} visible characters")
    return text


class Token(BaseModel):
    """One entry of the tokens file."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: Annotated[str, AfterValidator(_valid_name)]
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", repr=False)
    scope: Scope
    expires: date | None = None

    def state(self, today: date) -> TokenState:
        """
        Whether the token is valid. From the day that `expires` names on, it is not.

        Args:
            today: The day in UTC.
        """
        if self.expires is None:
            return "valid"
        days = (self.expires - today).days
        return "expired" if days <= 0 else "expires soon" if days <= SOON_DAYS else "valid"

    @property
    def scopes(self) -> frozenset[Scope]:
        """All scopes of the token: `score` includes `read`."""
        return ALL_SCOPES if self.scope == "score" else READ_ONLY

    @property
    def credential(self) -> tuple[str, str]:
        """Digest and scope: a token that changes either is another one."""
        return self.sha256, self.scope


_TOKENS = TypeAdapter(list[Token])


class TokensFile(WatchedFile[list[Token]]):
    """
    The tokens in force. An empty list is valid and revokes all tokens. A token is logged 14 days before it
    expires.

    Args:
        today: The day in UTC.

    Raises:
        ConfigurationError: At the start the file is missing or invalid.
    """

    def __init__(self, path: Path, today: Callable[[], date] = utc_today) -> None:
        self.today = today
        super().__init__(path, "SCORING_API_TOKENS_FILE")

    def find(self, token: bytes) -> Token | None:
        """The entry of a valid token, or None."""
        digest = hashlib.sha256(token).hexdigest()
        return next((entry for entry in self._valid() if entry.sha256 == digest), None)

    def has(self, credential: tuple[str, str]) -> bool:
        """Whether a token with this digest and scope is valid."""
        return any(entry.credential == credential for entry in self._valid())

    def _valid(self) -> list[Token]:
        today = self.today()
        return [entry for entry in self.current() if entry.state(today) != "expired"]

    def _parse(self, content: bytes) -> list[Token]:
        tokens = parse_tokens(content, self._where)
        for token in tokens:
            if (state := token.state(self.today())) != "valid":
                log.warning("api.token_expires", name=token.name, expires=str(token.expires), state=state)
        return tokens


def parse_tokens(content: bytes, where: str) -> list[Token]:
    """Read the content of a tokens file. Raises: ConfigurationError: It is invalid."""
    try:
        tokens = _TOKENS.validate_python(yaml.safe_load(content.decode()))
    except ValidationError as error:
        faults = error.errors(include_input=False, include_url=False, include_context=False)
        raise ConfigurationError(f"{where}: {'; '.join(map(_fault_text, faults[:5]))}") from None
    except (ValueError, RecursionError, yaml.YAMLError):  # a date such as 2026-13-01 is a ValueError
        raise ConfigurationError(f"{where} is neither YAML nor JSON in UTF-8") from None
    if len({t.sha256 for t in tokens}) < len(tokens):
        raise ConfigurationError(f"{where}: two entries have the same sha256: keep one")
    return tokens


def _fault_text(fault: ErrorDetails) -> str:
    return ": ".join([*map(str, fault["loc"]), fault["msg"].removeprefix("Value error, ")])
