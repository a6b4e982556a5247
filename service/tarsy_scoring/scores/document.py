"""
The score document: the one JSON shape of a score, for the API, pages, exports and scores made offline.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tarsy_scoring.scores.fields import SHOWN_COLUMNS, no_results
from tarsy_scoring.scores.shapes import Usage

CurrentHash = Callable[[str | None, str | None], str | None]
"""The hash that criteria of this name have now for a chain; None if the name is unknown."""

_OUTCOMES = {True: "pass", False: "fail", None: None}
NO_USAGE = dict.fromkeys(Usage.model_fields)


def document(
    row: Mapping[str, Any],
    missing_tools: Sequence[Mapping[str, Any]],
    alternative_approaches: Sequence[Mapping[str, Any]],
    turns: Sequence[Mapping[str, Any]],
    current_hash: CurrentHash,
) -> dict[str, Any]:
    """
    Build the document of a score, with plain JSON values except for ids and times.

    Args:
        row: A row of `session_scores`.
    """
    shown: dict[str, Any] = {name: row[name] for name in SHOWN_COLUMNS}
    shown["usage"] = row["usage"] or NO_USAGE
    shown["scored_at"] = row["completed_at"]
    shown["is_current_criteria"] = (
        row["criteria_hash"] is not None
        and current_hash(row["criteria"], row["chain_id"]) == row["criteria_hash"]
    )
    shown["spread"] = _spread([sample["total_score"] for sample in row["samples"]])
    is_checked = bool(row["gates"]) or row["status"] == "completed"
    passed, total = sum(gate["passed"] for gate in row["gates"]), len(row["gates"])
    shown["gates_passed"], shown["gates_total"] = (passed, total) if is_checked else (None, None)
    shown["layers"] = {
        "interaction": None,
        "gates": _OUTCOMES[passed == total if total else None],
        "judge": _OUTCOMES[row["judge_passed"]],
    }
    shown["missing_tools"] = list(missing_tools)
    shown["alternative_approaches"] = list(alternative_approaches)
    shown["turns"] = list(turns)
    if row["status"] == "in_progress":
        shown["current_stage"] = row["current_stage"]
    return shown


def unstored_row(
    session_id: str, chain_id: str | None, criteria: str, criteria_hash: str | None, started_at: datetime
) -> dict[str, Any]:
    """A row of `session_scores` for a score that ends now and is not stored. It has no results yet."""
    return {
        **dict.fromkeys(SHOWN_COLUMNS),
        **no_results(),
        "score_id": uuid.uuid4(),
        "session_id": session_id,
        "chain_id": chain_id,
        "purpose": "production",
        "attempt": 1,
        "score_triggered_by": "cli",
        "created_at": started_at,
        "started_at": started_at,
        "completed_at": datetime.now(UTC),
        "criteria": criteria,
        "criteria_hash": criteria_hash,
    }


def _spread(totals: Sequence[int]) -> int | None:
    return max(totals) - min(totals) if totals else None
