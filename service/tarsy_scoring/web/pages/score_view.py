"""The values of the page of a score, from the score's document and its session."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from tarsy_scoring.web.pages.citations import texts_of
from tarsy_scoring.web.pages.legible import cited_entries
from tarsy_scoring.web.pages.session import ShownSession, Unreadable

T = TypeVar("T")

MAX_REPLY_CHARACTERS = 50_000
TAMPERING = "tampering_suspected"


def cited(document: Mapping[str, Any]) -> list[str]:
    """Ids of all entries that the texts of a document cite, and of those that have a failed quotation."""
    failed = (document["grounding"] or {}).get("failed", ())
    return cited_entries(
        *(citation["found_in"] for citation in failed), *(text for _, text in texts_of(document))
    )


def cut_entries(document: Mapping[str, Any]) -> list[str]:
    """Ids of the entries that were shortened for the judge; empty for a score without coverage."""
    coverage = document["coverage"]
    return list(coverage.get("cut_entries", ())) if coverage else []


def session_facts(row: Mapping[str, Any] | None, session: ShownSession | Unreadable) -> dict[str, Any]:
    """Alert type, chain, labels and status of a session: from a row of its scores, else from the source."""
    row = row or {}
    return {
        "alert_type": row.get("alert_type") or getattr(session, "alert_type", None),
        "chain_id": row.get("chain_id") or getattr(session, "chain_id", None),
        "labels": row.get("labels") or {},
        "status": getattr(session, "status", None),
    }


def with_changes(
    history: Sequence[Mapping[str, Any]],
) -> list[tuple[Mapping[str, Any], str | None, UUID | None]]:
    """
    Each score with what it can be compared with.

    The first is the criteria hash of the score before it under the same name; None if that did not change.
    The second is the id of the completed score before it; None if it is not completed itself or is the first.
    """
    shown: list[tuple[Mapping[str, Any], str | None, UUID | None]] = []
    for place, score in enumerate(history):
        earlier = history[place + 1 :]
        older = (d for d in earlier if d["criteria_hash"] and d["criteria"] == score["criteria"])
        before = next(older, None)
        changed = (
            before is not None
            and score["criteria_hash"]
            and before["criteria_hash"] != score["criteria_hash"]
        )
        completed = (d["score_id"] for d in earlier if d["status"] == score["status"] == "completed")
        shown.append(
            (
                score,
                before["criteria_hash"] if before is not None and changed else None,
                next(completed, None),
            )
        )
    return shown


def judged_by(content: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """`max_points` of each category and `weights` of each rubric item of stored criteria, by id."""
    return {
        "max_points": {
            category["id"]: category["max_points"] for category in content.get("categories") or ()
        },
        "weights": {item["id"]: item["weight"] for item in content.get("rubric") or () if "weight" in item},
    }


def in_order(values: Mapping[str, T], known: Iterable[str]) -> dict[str, T]:
    """Sort by the order of the criteria, because `jsonb` keeps no order of names. Unknown names come last."""
    first = [name for name in known if name in values]
    return {name: values[name] for name in [*first, *(name for name in values if name not in first)]}


def steered_total(document: Mapping[str, Any]) -> int | None:
    """
    The total that the judge gave with the suspicious text, where the one without it counts; None: not stored.
    """
    totals = [sample["total_score"] for sample in document["samples"] or ()]
    if TAMPERING not in document["flags"] or not totals:
        return None
    total = statistics.median_low(totals)
    return total if total != document["total_score"] else None


def _nothing_of(session: Unreadable) -> dict[str, Any]:
    return {"alert": None, "reason": session.reason, "advice": session.advice}


def values(
    session_id: str,
    document: Mapping[str, Any] | None,
    session: ShownSession | Unreadable,
    *,
    row: Mapping[str, Any] | None,
    history: Sequence[Mapping[str, Any]],
    newest: Mapping[str, Any] | None,
    turns: Sequence[Mapping[str, Any]],
    criteria_content: Mapping[str, Any],
) -> dict[str, Any]:
    """
    Values of `score.html` about a session and one of its scores.

    Args:
        document: None: the session has no score.
        row: Row of any score of the session.
        history: Documents of the session's scores, newest first.
        newest: Document of the session's newest production score.
        criteria_content: Stored content of the criteria that judged; empty if unknown.
    """
    judged = judged_by(criteria_content)
    if document is not None:
        document = {
            **document,
            "score_breakdown": in_order(document["score_breakdown"] or {}, judged["max_points"]),
        }
        if reference := document["reference"]:
            provided_at = datetime.fromisoformat(reference["provided_at"])
            document["reference"] = reference | {"provided_at": provided_at}
        if rubric := document["rubric"]:
            document["rubric"] = rubric | {"scores": in_order(rubric.get("scores", {}), judged["weights"])}
    return {
        "session_id": session_id,
        "doc": document,
        "of_score": f"?score={document['score_id']}" if document else "",
        "info": session_facts(row, session),
        "newest": newest,
        "history": with_changes(history),
        "turns": turns,
        "max_reply_characters": MAX_REPLY_CHARACTERS,
        "is_awaited": document is None and isinstance(session, Unreadable) and session.is_running,
        "steered_total": steered_total(document) if document else None,
        "is_gone": isinstance(session, Unreadable) and session.is_gone,
        "session": session if isinstance(session, ShownSession) else _nothing_of(session),
        "anchors": session.anchors if isinstance(session, ShownSession) else frozenset(),
        "cited": cited(document) if document else [],
        **judged,
    }
