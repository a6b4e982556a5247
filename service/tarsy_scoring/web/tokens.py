"""
Bearer tokens of the API: a file of names, SHA-256 digests and scopes, reloaded when it changes.

The file holds digests only, so that reading it does not give access.
"""

import hashlib
import hmac
import os
from pathlib import Path
from typing import Annotated

import structlog
import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.timeline.text import without_invisible
from tarsy_scoring.web.context import Scope

log = structlog.get_logger()

NAME_MAX = 255
MAX_FILE_BYTES = 1_000_000
ADVICE = 'make one with: printf %s "$TOKEN" | sha256sum'


def is_name(text: str) -> bool:
    """Whether the text can name a caller: 1-255 visible characters, no blank at either end."""
    return 0 < len(text) <= NAME_MAX and text.isprintable() and text.strip() == text == without_invisible(text)


def _valid_name(text: str) -> str:
    if not is_name(text):
        raise ValueError(f"expected 1-{NAME_MAX} visible characters")
    return text


def _valid_digest(text: str) -> str:
    digest = text.lower()
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise ValueError(f"expected 64 hexadecimal digits; {ADVICE}")
    return digest


class Token(BaseModel):
    """One entry of the tokens file."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: Annotated[str, AfterValidator(_valid_name)]
    sha256: Annotated[str, AfterValidator(_valid_digest)] = Field(repr=False)
    scope: Scope

    @property
    def scopes(self) -> frozenset[Scope]:
        """All scopes of the token: `score` includes `read`."""
        return frozenset({"read", "score"} if self.scope == "score" else {"read"})


_TOKENS = TypeAdapter(tuple[Token, ...])


class TokensFile:
    """
    The tokens in force.

    When the file becomes unreadable or invalid, the tokens read before stay in force and the error is logged:
    a typing error must not lock out every caller. An empty list is valid and revokes all tokens.

    Raises:
        ConfigurationError: At the start the file is missing or invalid.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._signature()
        self._tokens = self._read()

    def find(self, token: bytes) -> Token | None:
        """The entry of a token, or None. The time taken reveals neither the entry's place nor its digest."""
        self._reload_if_changed()
        digest = hashlib.sha256(token).hexdigest()
        found = None
        for entry in self._tokens:
            if hmac.compare_digest(entry.sha256, digest):
                found = entry
        return found

    def _reload_if_changed(self) -> None:
        # Taken before reading: if the file changes while it is read, the next request reloads it.
        signature = self._signature()
        if signature == self._seen:
            return
        self._seen = signature
        try:
            self._tokens = self._read()
        except ConfigurationError as error:
            log.error("api.tokens_file_broken", reason=str(error), effect="the tokens read before stay in force")
        else:
            log.info("api.tokens_reloaded", path=str(self._path), tokens=len(self._tokens))

    def _signature(self) -> tuple[int, int, int] | None:
        """Modification time, size and inode of the file; they change with its content. None: stat failed."""
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> tuple[Token, ...]:
        """Read and check the file. Raises: ConfigurationError: it is missing or invalid; quotes no value."""
        where = f"SCORING_API_TOKENS_FILE: {self._path}"
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
            if len(content) > MAX_FILE_BYTES:
                raise ConfigurationError(f"{where} is larger than {MAX_FILE_BYTES:,} bytes")
            entries = yaml.safe_load(content.decode())
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigurationError(f"{where} cannot be read: {reason}") from None
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = f" in line {mark.line + 1}" if mark else ""
            raise ConfigurationError(f"{where} is neither YAML nor JSON{line}") from None
        if not isinstance(entries, list):
            raise ConfigurationError(f"{where}: expected a list of name, sha256 and scope")
        try:
            tokens = _TOKENS.validate_python(entries)
        except ValidationError as error:
            faults = error.errors(include_input=False, include_url=False, include_context=False)
            raise ConfigurationError(f"{where}: {'; '.join(map(_fault_text, faults[:5]))}") from None
        if len({t.sha256 for t in tokens}) < len(tokens):
            raise ConfigurationError(f"{where}: two entries have the same sha256: keep one")
        return tokens


def _fault_text(fault: object) -> str:
    assert isinstance(fault, dict)
    place = ".".join(str(part) for part in fault["loc"])
    return f"{place}: {str(fault['msg']).removeprefix('Value error, ')}"
