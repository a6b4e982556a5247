"""The values that `score.html` shows, read together in `score_values`."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID, uuid4

from tarsy_scoring.events import UNNAMED, sender_of_event
from tarsy_scoring.labels import labels
from tarsy_scoring.memory.lessons import read_lessons
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.references import store as stored_references
from tarsy_scoring.scores.reader import references_of
from tarsy_scoring.scores.why_no_score import why_no_score
from tarsy_scoring.timeline.clean.masking import masking_of
from tarsy_scoring.web.api.common import find_criteria
from tarsy_scoring.web.context import AppContext
from tarsy_scoring.web.pages.session import SessionTexts, UnreadableSession, read_session

T = TypeVar("T")
Document = Mapping[str, Any]

MAX_REPLY_CHARACTERS = 50_000
HISTORY_SHOWN = LABELS_SHOWN = 20


async def score_values(context: AppContext, session_id: str, document: Document | None) -> dict[str, Any]:
    """
    Values for `score.html` about a session and one score.

    Args:
        document: None: the session has no score.

    Raises:
        Problem: 404 or 503, the session has no score and cannot be shown.
        DatabaseAway: See `Database.once`.
    """
    reader, database = context.reader, context.reader.database
    # One after the other: a page takes one connection at a time.
    session = await read_session(context, session_id)
    row = await reader.newest_score(session_id)
    history = await reader.history(session_id, HISTORY_SHOWN + 1)
    production = await reader.history(session_id, 1, purpose="production")
    references = await references_of(database, [session_id])
    of_score = await _values_of_score(context, document)
    disposition = await reader.disposition(session_id)
    newest = next(iter(production or ()), None)
    is_unknown = document is None and disposition is None
    if is_unknown and isinstance(session, UnreadableSession) and not session.is_running:
        raise session.problem(session_id, has_score=False)
    shown = session if isinstance(session, SessionTexts) else None
    score = f"score={document['score_id']}&" if document else ""
    return {
        "session_id": session_id,
        "session": shown,
        "unreadable": session if isinstance(session, UnreadableSession) else None,
        "info": session_facts(row or {}, shown),
        "timeline": f"/sessions/{session_id}/timeline?{score}" if shown else "",
        "newest": newest,
        "why_no_score": why_no_score(newest, disposition),
        "history": with_earlier((history or [])[:HISTORY_SHOWN]),
        "has_more": len(history or ()) > HISTORY_SHOWN,
        "newest_reference": next(iter(references.get(session_id, ())), None),
        "criteria_names": sorted(context.policy.hashes),
        "key": str(uuid4()),
        "max_reply_characters": MAX_REPLY_CHARACTERS,
        **of_score,
    }


def session_facts(row: Mapping[str, Any], session: SessionTexts | None) -> dict[str, Any]:
    """Alert type, chain, labels and status: from a row with a score, else from the source."""
    return {
        "alert_type": row.get("alert_type") or (session and session.alert_type),
        "chain_id": row.get("chain_id") or (session and session.chain_id),
        "labels": row.get("labels") or {},
        "status": session and session.status,
    }


async def _values_of_score(context: AppContext, document: Document | None) -> dict[str, Any]:
    """The values about the score itself."""
    if document is None:
        return {"doc": None, "turns": (), "can_label": False}
    reader, database, score_id = context.reader, context.reader.database, document["score_id"]
    criteria, criteria_hash = document["criteria"], document["criteria_hash"]
    judged = await find_criteria(context, criteria_hash or "")
    content = judged["content"] if judged else {}
    known = context.registry.get(criteria) if criteria in context.registry else None
    turns = await reader.replies(score_id) or ()
    masking = masking_of(context.settings.config.masking_patterns)
    return {
        "doc": with_order(document, content),
        "turns": turns,
        "lessons": next((read_lessons(t["reply"], masking) for t in turns if t["kind"] == "memory"), None),
        "requested_by": await _requested_by(context, document),
        "judged_against": await stored_references.text_of(database, score_id),
        "meaning_of_total": known.meaning if known else None,
        "meanings": known.failure_vocabulary if known else {},
        "max_points": {c["id"]: c["max_points"] for c in content.get("categories") or ()},
        "weights": {i["id"]: i["weight"] for i in content.get("rubric") or () if "weight" in i},
        **await _label_values(database, document["score_id"]),
    }


async def _label_values(database: Database, score_id: UUID) -> dict[str, Any]:
    """Values of the form for a label, and of the labels given."""
    subject = await labels.subject(database, score_id)
    if subject is None or not subject.can_be_labelled:
        return {"can_label": False}
    given = await labels.of_score(database, score_id, LABELS_SHOWN + 1)
    return {
        "can_label": True,
        "labels": given[:LABELS_SHOWN],
        "has_more_labels": len(given) > LABELS_SHOWN,
        "outcomes": [band.id for band in subject.bands],
    }


async def _requested_by(context: AppContext, document: Document) -> str:
    """Who asked for a score, see `sender_of_event`."""
    name: str = document["score_triggered_by"]
    if name in UNNAMED or await context.reader.is_asked_by_person(document["score_id"], name):
        return name
    return sender_of_event(name)


def with_order(document: Document, content: Mapping[str, Any]) -> dict[str, Any]:
    """
    Sort parts as the criteria do, because `jsonb` does not keep names in order.

    Args:
        content: The criteria that judged, as stored; empty if unknown.
    """
    categories, items = ([one["id"] for one in content.get(key) or ()] for key in ("categories", "rubric"))
    shown = {**document, "score_breakdown": in_order(document["score_breakdown"] or {}, categories)}
    if reference := document["reference"]:
        provided_at = datetime.fromisoformat(reference["provided_at"])
        shown["reference"] = reference | {"provided_at": provided_at}
    if rubric := document["rubric"]:
        shown["rubric"] = rubric | {"scores": in_order(rubric.get("scores", {}), items)}
    return shown


def in_order(values: Mapping[str, T], known: Iterable[str]) -> dict[str, T]:
    """Sort as the criteria do. Unknown names come last."""
    first = [name for name in known if name in values]
    return {name: values[name] for name in dict.fromkeys([*first, *values])}


def with_earlier(history: Sequence[Document]) -> list[tuple[Document, UUID | None]]:
    """Each score with the completed one before; None: this one is not completed, or the first."""
    shown: list[tuple[Document, UUID | None]] = []
    for place, score in enumerate(history):
        earlier = (
            d["score_id"] for d in history[place + 1 :] if d["status"] == score["status"] == "completed"
        )
        shown.append((score, next(earlier, None)))
    return shown
