"""
What destinations are notified of, in one shape for all of them.

A notice has ids, numbers, names of the configuration and flags. It never holds text of a session or of a
judge.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote

from tarsy_scoring.config.destinations import DestinationSettings

Kind = Literal["score", "drift", "budget_spent", "test"]

# Of the event `scoring.completed`.
SCORE_FIELDS = (
    "session_id",
    "score_id",
    "total_score",
    "outcome",
    "criteria",
    "criteria_hash",
    "judge_fingerprint",
    "flags",
    "has_reference",
)


@dataclass(frozen=True, slots=True)
class Notice:
    """
    Something to notify of.

    Args:
        event_id: The same in each repetition.
        chain_id: None for a budget of all chains, and for a session without a chain.
        labels: Those of the session; they are sent to no destination.
    """

    event_id: str
    kind: Kind
    at: datetime
    chain_id: str | None
    details: Mapping[str, Any]
    labels: Mapping[str, str]


def notice_of_score(event: Mapping[str, Any]) -> Notice:
    """The notice of a stored `scoring.completed`, whatever its total."""
    return Notice(
        event_id=event["event_id"],
        kind="score",
        at=datetime.fromisoformat(event["timestamp"]),
        chain_id=event["chain_id"],
        details={name: event.get(name) for name in SCORE_FIELDS},
        labels=event.get("labels") or {},
    )


def is_notified_of(notice: Notice, destination: DestinationSettings) -> bool:
    """Whether a webhook or a channel is to be notified."""
    if not _covers(destination, notice):
        return False
    if notice.kind == "score":
        return "score_below" in destination.events and is_below(notice, destination.score_below)
    return notice.kind == "test" or notice.kind in destination.events


def takes_score(notice: Notice, destination: DestinationSettings) -> bool:
    """Whether Langfuse gets something of this notice: a score with a total or an outcome."""
    details = notice.details
    is_something = notice.kind == "score" and (
        details["total_score"] is not None or details["outcome"] is not None
    )
    return is_something and _covers(destination, notice)


def is_below(notice: Notice, score_below: float | None) -> bool:
    """Whether the total of a score is below this number; without a number, whether the outcome is `fail`."""
    if score_below is None:
        return bool(notice.details["outcome"] == "fail")
    total = notice.details["total_score"]
    return total is not None and total < score_below


def link(notice: Notice, public_url: str | None) -> str | None:
    """The page about it; None without the address of the pages."""
    if public_url is None:
        return None
    pages = public_url.rstrip("/")
    if notice.kind == "score":
        return f"{pages}/sessions/{quote(notice.details['session_id'], safe='')}"
    return f"{pages}/drift" if notice.kind == "drift" else f"{pages}/"


def _covers(destination: DestinationSettings, notice: Notice) -> bool:
    """Whether the destination is about the chain; a budget of all chains concerns each of them."""
    is_about_all = notice.kind == "test" or (notice.kind == "budget_spent" and notice.chain_id is None)
    return not destination.chains or notice.chain_id in destination.chains or is_about_all
