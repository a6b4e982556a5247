"""Route of the drift report: whether scores changed because of the agents or because of the judge."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import JsonValue

from tarsy_scoring.drift.report import DriftReport, read_report
from tarsy_scoring.web.api.common import PREFIX, Reading, example
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.queries import DriftQuery

router = APIRouter(prefix=f"{PREFIX}/analytics", tags=["analytics"])

_OLD, _NEW, _HASH = "1f" * 32, "2e" * 32, "3d" * 32


def _estimate(value: float, low: float, high: float, n: int, error: float, method: str) -> dict[str, JsonValue]:
    numbers: dict[str, JsonValue] = {"value": value, "low": low, "high": high, "n": n, "standard_error": error}
    return numbers | {"method": method, "reason": None}


_FINDING: dict[str, JsonValue] = {
    "event_id": "6d1f6f0e-7f0e-4c53-8d0b-0d2f6a2f7a11",
    "look": "sessions",
    "chain_id": "kubernetes",
    "criteria": "investigation-methodology",
    "criteria_hash": _HASH,
    "old_fingerprint": _OLD,
    "new_fingerprint": _NEW,
    "cause": "judge",
    "is_clear": True,
    "judge": _estimate(-8.2, -9.6, -6.8, 40, 0.58, "paired t over anchors"),
    "whole": _estimate(-7.9, -11.2, -4.6, 640, 1.41, "Welch's t within strata"),
    "agents": _estimate(0.3, -3.3, 3.9, 640, 1.53, "the whole change less the judge's; Welch's t"),
    "began_at": "2026-01-05T10:00:00Z",
    "anchors": 40,
    "anchors_missing": 0,
    "compared_before": 340,
    "compared_after": 300,
    "meaning": ["The judge changed: the same sessions get -8.2 points (-9.6 to -6.8)."],
    "found_at": "2026-01-09T08:15:00Z",
    "is_event": True,
    "published_at": "2026-01-09T08:15:01Z",
}
_REPORT: JsonValue = {
    "findings": [_FINDING],
    "chain": {
        "chain_id": "kubernetes",
        "criteria": "investigation-methodology",
        "judge_fingerprint": _NEW,
        "judges_since": "2026-01-05T10:00:00Z",
        "old_fingerprint": _OLD,
        "scores": 300,
        "anchors": 40,
        "outstanding": 0,
        "meaning": "Another judge took over at 2026-01-05 10:00 UTC. 40 anchors were judged by both judges.",
    },
    "anchors": {"judged": 39, "gone": 1},
    "anchors_not_judged": [
        {
            "session_id": "d2b4a6c8-1111-4222-8333-444455556666",
            "chain_id": "kubernetes",
            "alert_type": "PodCrashLoop",
            "added_by": "ada",
            "added_at": "2025-12-01T09:00:00Z",
            "note": None,
            "state": "gone",
            "judgements": 0,
            "asked": 1,
            "error_kind": "session_not_found",
            "is_due": False,
        }
    ],
}


@router.get("/drift", summary="Tell changes of agents from changes of the judge", responses=example(_REPORT))
async def drift(request: Request, _: Reading, query: Annotated[DriftQuery, Query()]) -> DriftReport:
    """
    Findings of drift detection, newest first, and the anchors without a judgement by the current judge of
    their chain.

    Anchors are sessions that both judges judged. Their change is the judge's part; the rest of the change of
    ordinary sessions is the agents' part. Under one judge every change is the agents'. Changes are in points,
    later minus earlier; intervals have a confidence of 98 %.
    """
    inbox = context_of(request).inbox
    return await read_report(inbox, query.chain, query.criteria, since=query.since, limit=query.limit)
