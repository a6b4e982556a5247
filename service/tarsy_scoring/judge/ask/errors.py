"""
What endpoints' errors mean, and the reaction to each.

Reads status, headers and body where there is no answer, and the rate limits that any response reports.
`error_words` has the words.
"""

import math
import re
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal

from tarsy_scoring import errors
from tarsy_scoring.judge.ask.error_words import (
    LARGER_THAN_RATE,
    MEANINGS,
    PROMPT,
    REFUSED,
    REPLY_LIMIT,
    STATUS_OF_CODE,
    TOO_LONG,
    UNSUPPORTED,
    WAIT,
    WINDOW,
    number_in,
)

Meaning = Literal["too_long", "quota", "filtered", "key", "pause", "unavailable", "rejected"]

LONGEST_WAIT_S = 30.0  # for a longer wait the score goes back to the queue, so that no worker sleeps
LONGEST_RATE_LIMIT_DUE_S = 3600.0  # a header with a nonsense value must not park a score forever
LONGEST_WAIT_AFTER_ANSWER_S = 300.0  # an answered call refutes a header that stops the fleet for longer
SHORTEST_RATE_LIMIT_DUE_S = 10.0  # a provider that sends 429 with a wait of zero must not make the queue spin
# A score whose key was rejected, or whose quota is used up, is due again after this time.
KEY_DUE_S, QUOTA_DUE_S = 60.0, 300.0
_RATE_LIMITED = 429
_ASKING_TO_WAIT = frozenset({429, 503})
_BODY_TOO_LARGE = 413
# Statuses below 500 with which another call may succeed; Text Generation Inference sends 424 for a failed
# generation.
_PASSING = frozenset({408, 409, 424, 429})
# With these statuses a gateway gave up waiting while the model may still be writing: 408, 502, 504, and
# Cloudflare's own 520-527.
_GIVEN_UP_ON = frozenset({408, 502, 504, *range(520, 528)})
_NO_QUOTA = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "billing_not_active",
        "budget_exceeded",
        "exceeded_current_quota_error",
        "Arrearage",
        "1113",
    }
)
_TOO_LONG_CODES = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded"}
)
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_READ_CHARACTERS = 2_000  # of an error's text; the facts come first
# An error says early what it refuses, and even earlier what it means.
_REFUSAL_CHARACTERS, _MEANING_CHARACTERS = 500, 200


class TransientError(Exception):
    """Another call may succeed. `error` is raised when retries are used up, `after_s` is the wait asked for."""

    def __init__(self, error: errors.ScoringError, after_s: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.after_s = after_s


class ErrorReply:
    """
    A response without an answer, and the reaction to it.

    Args:
        error: The error in the body as JSON, or the body as text where it is no JSON.
        needed_tokens: Tokens that such a call needs. The token limit counts as used up when fewer remain.
    """

    def __init__(
        self, status: int, headers: Mapping[str, str], error: object, needed_tokens: int = 1
    ) -> None:
        if isinstance(error, list) and error:  # Google's gateway wraps its errors in a list
            error = as_mapping(error[0]).get("error") or error[0]
        self._error = as_mapping(error)
        self._http_status = self.status = status
        # OpenRouter: a success may hold an error with status and text from the provider behind it.
        code = as_count(self._error.get("code"))
        if status < 300 and (meant := STATUS_OF_CODE.get(code or 0, code or 0)) in range(400, 600):
            self.status = meant
        said = (
            self._error.get("message")
            or self._error.get("detail")
            or (error if isinstance(error, str) else "")
        )
        self._metadata = as_mapping(self._error.get("metadata"))
        behind = self._metadata.get("raw")
        self._text = (f"{said}\n{behind}" if isinstance(behind, str) else str(said))[:_READ_CHARACTERS]
        self.words = frozenset(str(self._error[key]) for key in ("code", "type") if self._error.get(key))
        self.wait_s = wait_asked_s(
            headers, needed_tokens, self._wait_in_body_s(), is_rate_limited=self.status == _RATE_LIMITED
        )

    def describe(self, key: str | None) -> str:
        """Status and identifiers; never free text, which may quote the prompt or the key."""
        named = [
            f"{name} {value}"
            for name in ("code", "type", "param")
            if isinstance(value := self._error.get(name), str)
            and _IDENTIFIER.fullmatch(value)
            and not (key and (key in value or value in key))
        ]
        return ", ".join([f"HTTP {self.status}", *named])

    def reaction(self, who: str, key: str | None) -> tuple[dict[str, Any], Exception]:
        """
        The facts about the provider, as keywords for `limits.rules.Result`, and the error to raise.

        Args:
            who: The judge, in words for the message.
        """
        said = f"{who} answered {self.describe(key)}"
        account: dict[str, Any] = {"reason": f"HTTP {self.status}", "is_refused": True}
        match self.meaning:
            case "too_long":
                window, prompt = self.token_sizes()
                sizes = f" (window {window}, prompt {prompt} tokens)" if window or prompt else ""
                return account, errors.PromptTooLong(
                    f"{who} reports that the prompt is too long{sizes}", window, prompt
                )
            case "quota":
                advice = f"{said}: the quota is used up; pay or raise it at the provider"
                return _opens("quota", account), errors.WaitFor(advice, QUOTA_DUE_S, "quota")
            case "key":
                advice = f"{said}: the key is rejected; check the key of the provider"
                return _opens("key", account), errors.WaitFor(advice, KEY_DUE_S, "key")
            case "filtered":
                return account, errors.ContentFiltered(
                    f"{said}: its filter refuses the prompt; another provider may not"
                )
            case "pause":
                if self.status != _RATE_LIMITED:  # a 5xx that asks us to wait is a failure as well
                    account = _failed(account)
                due_s = min(max(self.wait_s or 0, SHORTEST_RATE_LIMIT_DUE_S), LONGEST_RATE_LIMIT_DUE_S)
                account["blocked_s"] = min(self.wait_s or 1.0, LONGEST_RATE_LIMIT_DUE_S)
                limited = errors.WaitFor(f"{said}: the provider asks us to wait", due_s, "rate_limit")
                return account, TransientError(limited, self.wait_s)
            case "unavailable":
                failure = errors.JudgeUnavailable(f"{said} and no chat completion")
                return _failed(account), TransientError(failure, self.wait_s)
            case "rejected":
                account["reason"] = self.describe(key)  # rejections are equal if their identifiers are
                return account, errors.JudgeRejectedRequest(f"{said}: {self._advice()}")

    @property
    def meaning(self) -> Meaning:
        """The reaction that the response calls for; see `client.JudgeClient.ask`."""
        if self.says_prompt_is_too_long():
            return "too_long"
        if self.status == 402 or self.words & _NO_QUOTA:
            return "quota"
        # Filters and moderation also send a 403, although the key is valid.
        if "content_filter" in self.words or "flagged_input" in self._metadata:
            return "filtered"
        if self.status >= 400 and (meaning := self._meaning_in_text()):
            return meaning
        if self.status in (401, 403):
            return "key"
        # A gateway may put an error into a body with a success status.
        if 300 <= self.status < 500 and self.status not in _PASSING:
            return "rejected"
        is_pause = self.status == _RATE_LIMITED or (self.wait_s or 0) > LONGEST_WAIT_S
        return "pause" if is_pause else "unavailable"

    def _meaning_in_text(self) -> Meaning | None:
        head = self._text[:_MEANING_CHARACTERS]
        return next((meaning for meaning, words in MEANINGS if words.search(head)), None)

    def _advice(self) -> str:
        if limit := number_in(REPLY_LIMIT, self._text):
            return f"the reply limit is too large; lower max_reply_tokens to {limit}"
        if self.status == _BODY_TOO_LARGE:
            return "the request has too many bytes for it or for a proxy in between; raise the size of bodies there"
        return "check base_url, model and parameters of the provider"

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
        """Tokens in window and prompt; None where the error does not report them."""
        window, prompt = as_count(self._error.get("n_ctx")), as_count(self._error.get("n_prompt_tokens"))
        if window is None:
            window = number_in(LARGER_THAN_RATE, self._text) or number_in(WINDOW, self._text)
        if prompt is None:
            prompt = number_in(PROMPT, self._text)
        return window, prompt

    def unsupported_parameter(self, sent: Iterable[str]) -> str | None:
        """
        The sent part that the endpoint does not support; not one whose value is merely too large.

        Args:
            sent: Names: parameters and other parts (`error_words.Refusable`).
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

    def _wait_in_body_s(self) -> float | None:
        """The wait in a Google error's details, or in any error's text."""
        if self.status not in _ASKING_TO_WAIT:
            return None
        details = self._error.get("details")
        delays = [as_mapping(d).get("retryDelay") for d in details] if isinstance(details, list) else []
        text = WAIT.search(self._text)
        waits = [*delays, text and text[1].rstrip(".")]
        return next((_wait_s(wait) for wait in waits if isinstance(wait, str)), None)


def error_in(answer: Mapping[str, Any]) -> object:
    """What a body with a success status reports as an error, MiniMax as `base_resp`; None for an answer."""
    said = as_mapping(answer.get("base_resp"))
    if said.get("status_code") and not answer.get("choices"):
        return {"code": said["status_code"], "message": said.get("status_msg")}
    return answer.get("error") or None


def wait_asked_s(
    headers: Mapping[str, str],
    needed_tokens: int,
    in_body_s: float | None = None,
    *,
    is_rate_limited: bool = False,
) -> float | None:
    """
    The wait that the provider asks for; None where it asks for none, or for zero or less.

    Read from `retry-after-ms`, then `retry-after`, then the longest reset among the `x-ratelimit-*` limits
    that are used up, then the body. After a 429 some limit must be used up, so if none is reported as such,
    the longest reset counts.

    Args:
        headers: Looked up in lower case.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    resets, used_up = list[float](), list[float]()
    for of, needed in (("requests", 1), ("tokens", needed_tokens)):
        reset_s = _wait_s(headers.get(f"x-ratelimit-reset-{of}"))
        remaining = _number(headers.get(f"x-ratelimit-remaining-{of}"))
        if reset_s is not None:
            resets.append(reset_s)
            used_up += [reset_s] if remaining is not None and remaining < needed else []
    sources = [
        milliseconds and _seconds_to(milliseconds / 1000),
        _wait_s(headers.get("retry-after")),
        max(used_up, default=None),
        in_body_s,
        max(resets, default=None) if is_rate_limited else None,
    ]
    return next((asked_s for asked_s in sources if asked_s is not None and asked_s > 0), None)


def _opens(kind: Literal["key", "quota"], account: dict[str, Any]) -> dict[str, Any]:
    return {"reason": account["reason"], "opens": kind}


def _failed(account: dict[str, Any]) -> dict[str, Any]:
    return {"reason": account["reason"], "failed": True}


def as_mapping(value: object) -> Mapping[str, Any]:
    """The mapping itself; an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def as_count(value: object) -> int | None:
    """The whole number itself if it is >= 0, also where it is written as 1.0; None for any other value."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


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


# Larger numbers than these are no waits but moments: Unix times in seconds, in milliseconds, or finer.
_UNIX_TIME_FROM, _FINER_FROM = 1e9, 1e12


def _wait_s(value: str | None) -> float | None:
    """Seconds to wait: `7`, `1d2h`, `6m0s`, `20ms`, or until a Unix time, an RFC 3339 time or an HTTP date."""
    if not value:
        return None
    if (number := _number(value)) is not None:
        return _seconds_to(number)
    if found := _DURATION.fullmatch(value):
        return sum(float(part or 0) * unit for part, unit in zip(found.groups(), _UNITS_S, strict=True))
    try:
        moment = _moment(value)
        return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None


def _seconds_to(number: float) -> float:
    """The number itself, or the seconds until the Unix time that it is."""
    if number <= _UNIX_TIME_FROM:
        return number
    while number > _FINER_FROM:
        number /= 1000
    return number - time.time()


def _moment(value: str) -> datetime:
    try:
        return datetime.fromisoformat(value.upper())
    except ValueError:
        return parsedate_to_datetime(value)
