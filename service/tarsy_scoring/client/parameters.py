"""Filters of lists and exports, and the request that each method sends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, TypedDict
from urllib.parse import quote
from uuid import UUID, uuid4

_API = "/api/v1/scoring"
_Excluded = Literal["tool_built", "injection_suspected"]
PAGE = 200  # the most sessions that the API gives at once


class _Filters(TypedDict, total=False):
    chain: str
    criteria: str
    since: datetime
    until: datetime
    min_score: int
    max_score: int
    alert_type: str
    labels: Mapping[str, str]
    flag: str
    outcome: Literal["pass", "fail"]
    begins_with: str


class SessionFilters(_Filters, total=False):
    """
    Filters of sessions.

    `since` and `until` (exclusive) apply to the end of the session, `begins_with` to its id and alert type. A
    time without a zone is UTC. `labels` must all match. `status` is that of the newest score, or
    `not_scored`.
    """

    status: str
    sort: Literal["newest", "score_asc", "score_desc"]


class ExportFilters(_Filters, total=False):
    """
    As `SessionFilters`; `since` and `until` apply to the end of the score, and `status` is its own.

    `ended_since` and `ended_until` (exclusive) apply to the end of the session.
    """

    ended_since: datetime
    ended_until: datetime
    status: str
    purpose: Literal["production", "consistency", "anchor", "shadow"]
    latest: bool
    labelled: bool
    exclude: _Excluded | Sequence[_Excluded]


@dataclass(frozen=True, slots=True)
class Call:
    """
    One request.

    Args:
        is_repeatable: A repeat does no harm where the answer to the first request was lost.
    """

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    is_repeatable: bool = True


def request_score(
    session_id: str,
    *,
    force: bool,
    criteria: str | None,
    reason: str | None,
    reference: str | Mapping[str, Any] | None,
    use_reference: bool,
    idempotency_key: str | None,
) -> Call:
    """The request for a score. Without a key it gets a new one, so that it can be repeated."""
    wanted = {
        "force_rescore": force or None,
        "criteria": criteria,
        "reason": reason,
        "reference": {"text": reference} if isinstance(reference, str) else _plain(reference),
        "use_reference": None if use_reference else False,
    }
    body = {name: value for name, value in wanted.items() if value is not None}
    headers = {"Idempotency-Key": idempotency_key or str(uuid4())}
    return Call("POST", f"{_session(session_id)}/score", body=body, headers=headers)


def score_of_session(session_id: str) -> Call:
    return Call("GET", f"{_session(session_id)}/score")


def score_by_id(score_id: UUID | str) -> Call:
    return Call("GET", f"{_API}/scores/{quote(str(score_id), safe='')}")


def cancel(score_id: UUID | str) -> Call:
    return Call("POST", f"{_API}/scores/{quote(str(score_id), safe='')}/cancel", is_repeatable=False)


def history(session_id: str, cursor: str | None) -> Call:
    return Call("GET", f"{_session(session_id)}/scores", _query({"cursor": cursor}))


def sessions(filters: Mapping[str, Any], cursor: str | None) -> Call:
    return Call("GET", f"{_API}/sessions", _query({**filters, "cursor": cursor, "limit": PAGE}))


def export(filters: Mapping[str, Any]) -> Call:
    return Call("GET", f"{_API}/export", _query({**filters, "format": "jsonl"}))


def _session(session_id: str) -> str:
    return f"{_API}/sessions/{quote(session_id, safe='')}"


def _query(filters: Mapping[str, Any]) -> dict[str, Any]:
    query = {name: _text(value) for name, value in filters.items() if value is not None}
    if "labels" in query:
        query["label"] = [f"{name}={value}" for name, value in filters["labels"].items()]
        del query["labels"]
    if "begins_with" in query:
        query["q"] = query.pop("begins_with")
    return query


def _plain(reference: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if reference is None else {name: _text(value) for name, value in reference.items()}


def _text(value: Any) -> Any:
    """A time in the form of the API; anything else as it is."""
    if not isinstance(value, datetime):
        return value
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
