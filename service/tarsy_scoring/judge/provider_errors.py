"""
Interprets error responses of endpoints, in the spellings of OpenAI, vLLM, llama.cpp, FastAPI and gateways.

Reads status, headers and body of a response without an answer, and the rate limits that any response reports.
"""

import math
import re
import time
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Literal

Meaning = Literal["too_long", "quota", "filtered", "key", "pause", "unavailable", "rejected"]

LONGEST_WAIT_S = 30.0  # for a longer wait the score goes back to the queue, so that no worker sleeps
LONGEST_RATE_LIMIT_DUE_S = 3600.0  # a header with a nonsense value must not park a score forever
_RATE_LIMITED = 429
# With these statuses a gateway gave up waiting while the model may still be writing: 408, 502, 504, and
# Cloudflare's own 520-527.
_GIVEN_UP_ON = frozenset({408, 502, 504, *range(520, 528)})
_NO_QUOTA = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
_TOO_LONG_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded"})
_TOO_LONG = re.compile(
    r"maximum (?:context|model|input) length|context (?:size|length|window)[^.]{0,80}exceed"
    r"|exceed[^.]{0,80}context (?:size|length|window)|longer than[^.]{0,40}context"
    r"|(?:prompt|input|request) is too long|too many input tokens",
    re.IGNORECASE,
)
_WINDOW = re.compile(
    r"(?:context length (?:is|of)(?: only)?|model length of|context size \(|tokens >)\s*(\d{1,9})", re.IGNORECASE
)
_PROMPT = re.compile(
    r"\((\d{1,9}) in the (?:messages|prompt)|"
    r"(?:resulted in|request has|you passed|\(length|request \(|too long:|input length of)\s*(\d{1,9})",
    re.IGNORECASE,
)
_UNSUPPORTED = re.compile(
    r"unsupported|n[o']t support|unknown|unrecogni[sz]ed|unexpected|not (?:permitted|allowed)|deprecated", re.IGNORECASE
)
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_READ_CHARACTERS = 2_000  # of an error's text; the facts are at its start


class ErrorResponse:
    """
    A response without an answer, and the properties that decide how to react to it.

    Args:
        headers: Looked up in lower case; a mapping that ignores case, or one in lower case.
        payload: The body as JSON; None where the body is not JSON.
        text: The body as text.
        needed_tokens: Tokens of a call like this one. The token limit counts as used up when fewer remain.
    """

    def __init__(
        self, status: int, headers: Mapping[str, str], payload: object, text: str, needed_tokens: int = 1
    ) -> None:
        self.status = status
        self._needed = {"requests": 1, "tokens": needed_tokens}
        self._headers = headers
        if isinstance(payload, list) and payload:  # Google's gateway wraps its errors in a list
            payload = payload[0]
        error = as_mapping(payload).get("error") or payload
        self._error = as_mapping(error)
        said = self._error.get("message") or self._error.get("detail") or (error if isinstance(error, str) else "")
        if (
            payload is None and status >= 300
        ):  # a broken answer is not searched: it may be the judge's own text about limits
            said = text
        self._text = str(said)[:_READ_CHARACTERS]
        self.words = frozenset(str(self._error[key]) for key in ("code", "type") if self._error.get(key))

    def describe(self, key: str | None) -> str:
        """Status and identifiers of the error; never its free text, which may quote the prompt or the key."""
        named = [
            f"{name} {value}"
            for name in ("code", "type", "param")
            if isinstance(value := self._error.get(name), str)
            and _IDENTIFIER.fullmatch(value)
            and not (key and (key in value or value in key))
        ]
        return ", ".join([f"HTTP {self.status}", *named])

    @property
    def meaning(self) -> Meaning:
        """The reaction that the response calls for; see `llm.JudgeClient.ask`."""
        if self.says_prompt_is_too_long():
            return "too_long"
        if self.status == 402 or self.words & _NO_QUOTA:
            return "quota"
        if "content_filter" in self.words:  # also sent as a 403, although the key is valid
            return "filtered"
        if self.status in (401, 403):
            return "key"
        # A gateway may put an error into a body with a status of success.
        if 300 <= self.status < 500 and self.status not in (408, 409, 429):
            return "rejected"
        is_pause = self.status == _RATE_LIMITED or (self.retry_after_s() or 0) > LONGEST_WAIT_S
        return "pause" if is_pause else "unavailable"

    def account(self) -> dict[str, Any]:
        """The facts about the provider that the response gives, as keywords of `limits.rules.Result`."""
        meaning = self.meaning
        account: dict[str, Any] = {"reason": f"HTTP {self.status}"}
        if meaning in ("key", "quota"):
            return account | {"opens": meaning}
        if meaning == "pause":
            account["blocked_s"] = min(self.retry_after_s() or 1.0, LONGEST_RATE_LIMIT_DUE_S)
        # A 5xx that asks us to wait is a failure as well.
        is_failure = meaning == "unavailable" or (meaning == "pause" and self.status != _RATE_LIMITED)
        return account | ({"failed": True} if is_failure else {"is_refused": True})

    def may_be_billed(self) -> bool:
        """Whether a model may have written tokens: a gateway gave up waiting, or broke off an answer."""
        return self.status < 300 or self.status in _GIVEN_UP_ON

    def says_prompt_is_too_long(self) -> bool:
        """
        Whether the error says that the prompt exceeds the window.

        Some servers send it as a 500. A 429 about "tokens" is a rate limit instead.
        """
        if self.words & _TOO_LONG_CODES:
            return True
        return self.status not in (401, 403, 429) and _TOO_LONG.search(self._text) is not None

    def token_sizes(self) -> tuple[int | None, int | None]:
        """Tokens of window and prompt; None where the error does not report them."""
        window, prompt = as_count(self._error.get("n_ctx")), as_count(self._error.get("n_prompt_tokens"))
        if window is None and (found := _WINDOW.search(self._text)):
            window = int(found[1])
        if prompt is None and (found := _PROMPT.search(self._text)):
            prompt = int(found[1] or found[2])
        return window, prompt

    def unsupported_parameter(self, sent: Iterable[str]) -> str | None:
        """The sent parameter that the endpoint does not support; not one whose value is merely too large."""
        if self.status not in (400, 422) or self.says_prompt_is_too_long():
            return None
        if not (_UNSUPPORTED.search(self._text) or any(_UNSUPPORTED.search(word) for word in self.words)):
            return None
        named = str(self._error.get("param") or self._text)
        return next((p for p in sorted(sent) if re.search(rf"\b{p}\b", named)), None)

    def retry_after_s(self) -> float | None:
        """
        The wait that the provider asks for; None where it asks for none, or for zero or less.

        Read from `retry-after-ms`, then `retry-after` (seconds or a date), then the longest reset of the
        `x-ratelimit-*` limits that are used up. After a 429 one of them must be used up, so if none is
        reported as such, the longest reset of any counts.
        """
        milliseconds = _number(self._headers.get("retry-after-ms"))
        resets, used_up = list[float](), list[float]()
        for of, needed in self._needed.items():
            reset_s = _duration_s(self._headers.get(f"x-ratelimit-reset-{of}"))
            remaining = _number(self._headers.get(f"x-ratelimit-remaining-{of}"))
            if reset_s is not None:
                resets.append(reset_s)
                used_up += [reset_s] if remaining is not None and remaining < needed else []
        sources = [
            milliseconds and milliseconds / 1000,
            _seconds_or_date(self._headers.get("retry-after")),
            max(used_up, default=None),
            max(resets, default=None) if self.status == _RATE_LIMITED else None,
        ]
        return next((asked_s for asked_s in sources if asked_s is not None and asked_s > 0), None)


def as_mapping(value: object) -> Mapping[str, Any]:
    """The mapping itself; an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def as_count(value: object) -> int | None:
    """The whole number itself if it is >= 0; None for any other value."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _seconds_or_date(value: str | None) -> float | None:
    seconds = _number(value)
    if value is None or seconds is not None:
        return seconds
    try:
        return parsedate_to_datetime(value).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None


def _number(value: str | None) -> float | None:
    try:
        number = float(value) if value else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


_DURATION = re.compile(
    r"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m(?!s))?(?:(\d{1,6}(?:\.\d{1,9})?)s)?(?:(\d{1,9}(?:\.\d{1,9})?)ms)?"
)
_UNITS_S = (86_400, 3_600, 60, 1, 0.001)


def _duration_s(value: str | None) -> float | None:
    """Parse `1d2h`, `6m0s`, `1s`, `20ms`; a number without a unit is in seconds."""
    seconds = _number(value)
    found = _DURATION.fullmatch(value) if value and seconds is None else None
    if found is None:
        return seconds
    return sum(float(part or 0) * unit for part, unit in zip(found.groups(), _UNITS_S, strict=True))
