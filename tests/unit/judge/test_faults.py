"""How error responses of OpenAI-compatible endpoints are understood."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from email.utils import formatdate
from typing import Any

import pytest

from tables import table
from tarsy_scoring.judge.ask.errors import ErrorReply


def fault(status: int = 400, payload: Any = None, *, needed_tokens: int = 1, **headers: str) -> ErrorReply:
    named = {k.replace("_", "-"): v for k, v in headers.items()}
    # The `openai` client takes the error out of a body.
    error = payload.get("error", payload) if isinstance(payload, dict) else payload
    return ErrorReply(status, named, error, needed_tokens)


def response(said: dict[str, Any]) -> ErrorReply:
    """An error response with the fields of a table row; the others are empty."""
    return fault(said["status"], said.get("payload") or said.get("text"), **said.get("headers", {}))


@table
def test_other_errors_are_not_about_the_length(said: dict[str, Any]) -> None:
    assert not response(said).says_prompt_is_too_long()


@table
def test_a_parameter_is_unsupported_only_where_the_endpoint_names_it(
    said: dict[str, Any], parameter: str | None
) -> None:
    assert response(said).unsupported_parameter({"max_tokens", "temperature"}) == parameter


@table
def test_the_wait_that_a_provider_asks_for(headers: dict[str, str], seconds: float | None) -> None:
    assert fault(429, {}, **headers).wait_s == (seconds if seconds is None else pytest.approx(seconds))


RESETS = {"x_ratelimit_reset_tokens": "6m0s", "x_ratelimit_reset_requests": "20s"}


@table
def test_a_limit_is_used_up_if_it_is_too_low_for_the_call(
    status: int, tokens: str, requests: str, needed_tokens: int, seconds: float | None
) -> None:
    remaining = {"x_ratelimit_remaining_tokens": tokens, "x_ratelimit_remaining_requests": requests}
    assert fault(status, {}, needed_tokens=needed_tokens, **RESETS, **remaining).wait_s == seconds


def test_a_429_waits_for_the_limit_that_the_call_exceeds() -> None:
    remaining = {"x_ratelimit_remaining_tokens": "500", "x_ratelimit_remaining_requests": "99"}
    resets = {"x_ratelimit_reset_tokens": "6s", "x_ratelimit_reset_requests": "1h"}
    assert fault(429, {}, needed_tokens=9_000, **remaining, **resets).wait_s == 6


MOMENTS = {
    "unix time": str,
    "milliseconds": lambda at: str(at * 1_000),
    "nanoseconds": lambda at: str(at * 10**9),
    "http date": lambda at: formatdate(at, usegmt=True),
    "rfc 3339": lambda at: datetime.fromtimestamp(at, UTC).isoformat(),
    "rfc 3339 elsewhere": lambda at: datetime.fromtimestamp(at, timezone(timedelta(hours=8))).isoformat(),
    "rfc 3339 in small letters": lambda at: f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dt%H:%M:%S.000z}",
}


@pytest.mark.parametrize("spell", MOMENTS.values(), ids=MOMENTS)
@pytest.mark.parametrize("header", ["retry_after", "x_ratelimit_reset_requests", "x_ratelimit_reset_tokens"])
def test_a_moment_is_a_wait_from_now(header: str, spell: Callable[[int], str]) -> None:
    began = time.time()
    asked = fault(429, {}, **{header: spell(int(began) + 20)}).wait_s
    assert asked is not None
    assert int(began) + 20 - time.time() <= asked <= int(began) + 20 - began
    assert fault(429, {}, **{header: spell(int(began) - 20)}).wait_s is None


@pytest.mark.parametrize("said", ["0001-01-01T00:00:00+08:00", "9999-12-31T23:59:59-08:00", "1e308", "2026-13-01", "-"])
def test_a_moment_that_cannot_be_is_no_error(said: str) -> None:
    assert fault(503, {}, retry_after=said).meaning in ("pause", "unavailable")


@table
def test_a_description_holds_identifiers_and_no_free_text(said: dict[str, Any], words: str) -> None:
    """Messages are stored, logged and published; free text of a provider may quote the prompt or the key."""
    assert response(said).describe("sk-secret") == words


@table
def test_each_error_has_a_meaning_and_an_account_for_the_circuit(
    said: dict[str, Any], meaning: str, account: dict[str, Any]
) -> None:
    """A failure counts for the circuit, a refused request does not; a bad key or used-up quota opens it."""
    found = response(said)
    assert found.meaning == meaning
    assert found.reaction("the judge", None)[0] == {"reason": f"HTTP {found.status}", **account}


@table
def test_these_statuses_may_be_billed(status: int) -> None:
    assert fault(status, {}).may_be_billed()


@table
def test_these_statuses_are_never_billed(status: int) -> None:
    assert not fault(status, {}).may_be_billed()
