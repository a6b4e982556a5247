"""Stores sessions and scores directly in the tables, at chosen times, for tests of queries."""

import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from builders import DEFAULT_CRITERIA, HASHES, Scoring
from tarsy_scoring.retention.erasure import MARK_DAYS

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
ENDED = frozenset({"completed", "failed", "timed_out", "cancelled"})


async def store_session(
    scoring: Scoring, session_id: str = "session-1", *, ended: datetime | None = NOON, **columns: Any
) -> None:
    """Store a session that was first seen a minute after it ended; an existing one stays unchanged."""
    values: dict[str, Any] = {"chain_id": "kubernetes", "alert_type": "PodCrashLoop", "labels": {}} | columns
    first_seen = values.pop("first_seen_at", (ended or NOON) + timedelta(minutes=1))
    await scoring.rows(
        "INSERT INTO sessions (session_id, chain_id, alert_type, labels, status, completed_at, first_seen_at) "
        "VALUES ($1, $2, $3, $4, 'completed', $5, $6) ON CONFLICT DO NOTHING",
        *(session_id, values["chain_id"], values["alert_type"], values["labels"], ended, first_seen),
    )


async def store_score(
    scoring: Scoring,
    session_id: str = "session-1",
    total_score: int | None = None,
    *,
    status: str = "completed",
    at: datetime = NOON,
    missing_tools: tuple[str, ...] = (),
    session: Mapping[str, Any] | None = None,
    **columns: Any,
) -> uuid.UUID:
    """
    Store a score, and its session where that is missing.

    Args:
        at: Creation time; an ended score ended 20 s later.
    """
    await store_session(scoring, session_id, **({"ended": at} | dict(session or {})))
    chain = await scoring.value("SELECT chain_id FROM sessions WHERE session_id = $1", session_id)
    criteria = columns.get("criteria", DEFAULT_CRITERIA)
    row = {
        "score_id": str(uuid.uuid4()),
        "session_id": session_id,
        "request_id": str(uuid.uuid4()),
        "chain_id": chain,
        "priority": 1,
        "score_triggered_by": "auto",
        "status": status,
        "total_score": total_score,
        "created_at": at.isoformat(),
        "completed_at": (at + timedelta(seconds=20)).isoformat() if status in ENDED else None,
        "lease_token": str(uuid.uuid4()) if status == "in_progress" else None,
        "criteria": criteria,
        "criteria_hash": HASHES.get(criteria),
        "judge_fingerprint": "judge-1",
    } | columns
    names = ", ".join(row)
    await scoring.rows(
        f"INSERT INTO session_scores ({names}) SELECT {names} FROM jsonb_populate_record(NULL::session_scores, $1)",
        json.loads(json.dumps(row, default=str)),
    )
    score_id = uuid.UUID(row["score_id"])
    for ordinal, tool in enumerate(missing_tools):
        await scoring.rows("INSERT INTO score_missing_tools VALUES ($1, $2, $3, 'because')", score_id, ordinal, tool)
    await scoring.rows(scoring.database.sql(MARK_DAYS), [session_id])
    return score_id
