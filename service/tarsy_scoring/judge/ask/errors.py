"""
Interprets error responses of endpoints.

Reads status, headers and body of a response without an answer, and the rate limits that any response reports.
`error_texts` has the words.
"""

import math
import re
import time
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Literal

from tarsy_scoring.judge.ask.error_words import (
    LARGER_THAN_RATE,
    MEANINGS,
    PROMPT,
    REFUSED,
    REPLY_LIMIT,
    TOO_LONG,
    UNSUPPORTED,
    WAIT,
    WINDOW,
    number_in,
)

Meaning = Literal["too_long", "quota", "filtered", "key", "pause", "unavailable", "rejected"]

LONGEST_WAIT_S = 30.0  # for a longer wait the score goes back to the queue, so that no worker sleeps
LONGEST_RATE_LIMIT_DUE_S = 3600.0  # a header with a nonsense value must not park a score forever
_RATE_LIMITED = 429
_ASKING_TO_WAIT = frozenset({429, 503})
# Statuses below 500 with which another call may succeed; Text Generation Inference sends 424 for a failed
# generation.
_PASSING = frozenset({408, 409, 424, 429})
# With these statuses a gateway gave up waiting while the model may still be writing: 408, 502, 504, and
# Cloudflare's own 520-527.
_GIVEN_UP_ON = frozenset({408, 502, 504, *range(520, 528)})
_NO_QUOTA = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "budget_exceeded"}
)
_TOO_LONG_CODES = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded"}
)
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_READ_CHARACTERS = 2_000  # of an error's text; the facts are at its start
# An error says what it refuses at its beginning, and what it means even earlier.
_REFUSAL_CHARACTERS, _MEANING_CHARACTERS = 500, 200


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
        self._http_status = self.status = status
        self._needed = {"requests": 1, "tokens": needed_tokens}
        self._headers = headers
        if isinstance(payload, list) and payload:  # Google's gateway wraps its errors in a list
            payload = payload[0]
        error = as_mapping(payload).get("error") or payload
        self._error = as_mapping(error)
        said = (
            self._error.get("message")
            or self._error.get("detail")
            or (error if isinstance(error, str) else "")
        )
        if (
            payload is None and status >= 300
        ):  # a broken answer is not searched: it may be the judge's own text about limits
            said = text
        # OpenRouter: a success may hold an error with the status of the provider behind it, and its text.
        if (
            status < 300
            and error is not payload
            and (code := as_count(self._error.get("code"))) in range(400, 600)
        ):
            self.status = code or status
        self._metadata = as_mapping(self._error.get("metadata"))
        behind = self._metadata.get("raw")
        self._text = (f"{said}\n{behind}" if isinstance(behind, str) else str(said))[:_READ_CHARACTERS]
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
        """The reaction that the response calls for; see `ask.client.JudgeClient.ask`."""
        if self.says_prompt_is_too_long():
            return "too_long"
        if self.status == 402 or self.words & _NO_QUOTA:
            return "quota"
        # Filters and moderation also send a 403, although the key is valid.
        if "content_filter" in self.words or "flagged_input" in self._metadata:
            return "filtered"
        if 400 <= self.status < 500 and (meaning := self._meaning_in_text()):
            return meaning
        if self.status in (401, 403):
            return "key"
        # A gateway may put an error into a body with a status of success.
        if 300 <= self.status < 500 and self.status not in _PASSING:
            return "rejected"
        is_pause = self.status == _RATE_LIMITED or (self.retry_after_s() or 0) > LONGEST_WAIT_S
        return "pause" if is_pause else "unavailable"

    def _meaning_in_text(self) -> Meaning | None:
        head = self._text[:_MEANING_CHARACTERS]
        return next((meaning for meaning, words in MEANINGS if words.search(head)), None)

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
        return self._http_status < 300 or self.status in _GIVEN_UP_ON

    def says_prompt_is_too_long(self) -> bool:
        """
        Whether the error says that the prompt exceeds the window.

        Some servers send it as a 500. A 429 about "tokens" is a rate limit instead, unless one call exceeds
        it.
        """
        if self.words & _TOO_LONG_CODES or LARGER_THAN_RATE.search(self._text):
            return True
        return self.status not in (401, 403, 429) and TOO_LONG.search(self._text) is not None

    def token_sizes(self) -> tuple[int | None, int | None]:
        """Tokens of window and prompt; None where the error does not report them."""
        window, prompt = as_count(self._error.get("n_ctx")), as_count(self._error.get("n_prompt_tokens"))
        if window is None:
            window = number_in(LARGER_THAN_RATE, self._text) or number_in(WINDOW, self._text)
        if prompt is None:
            prompt = number_in(PROMPT, self._text)
        return window, prompt

    def reply_limit(self) -> int | None:
        """The most reply tokens that the endpoint takes, where the error reports that more were asked for."""
        return number_in(REPLY_LIMIT, self._text)

    def unsupported_parameter(self, sent: Iterable[str]) -> str | None:
        """
        The sent part of the request that the endpoint does not support; not one whose value is merely too
        large.

        Args:
            sent: Names of parameters, and of other parts (`error_words.Refusable`).
        """
        if self.status not in (400, 422) or self.says_prompt_is_too_long():
            return None
        parts = sorted(sent)
        if UNSUPPORTED.search(self._text) or any(UNSUPPORTED.search(word) for word in self.words):
            named = str(self._error.get("param") or self._text)
            if found := next((p for p in parts if re.search(rf"\b{p}\b", named)), None):
                return found
        head = self._text[:_REFUSAL_CHARACTERS]
        return next((part for part, words in REFUSED if part in parts and words.search(head)), None)

    def retry_after_s(self) -> float | None:
        """
        The wait that the provider asks for; None where it asks for none, or for zero or less.

        Read from `retry-after-ms`, then `retry-after` (seconds or a date), then the longest reset of the
        `x-ratelimit-*` limits that are used up, then the body. After a 429 one of the limits must be used up,
        so if none is reported as such, the longest reset of any counts.
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
            self._wait_in_body_s(),
            max(resets, default=None) if self.status == _RATE_LIMITED else None,
        ]
        return next((asked_s for asked_s in sources if asked_s is not None and asked_s > 0), None)

    def _wait_in_body_s(self) -> float | None:
        """The wait in the details of a Google error, or in the text of any."""
        if self.status not in _ASKING_TO_WAIT:
            return None
        details = self._error.get("details")
        delays = [as_mapping(d).get("retryDelay") for d in details] if isinstance(details, list) else []
        text = WAIT.search(self._text)
        waits = [*delays, text and text[1].rstrip(".")]
        return next((_duration_s(wait) for wait in waits if isinstance(wait, str)), None)


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
