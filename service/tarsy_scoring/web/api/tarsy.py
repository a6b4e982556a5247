"""
Scores at TARSy's own addresses, with TARSy's keys, statuses and errors, for clients written for TARSy.

Source: TARSy's REST API at commit c35f0f75.
"""

from datetime import datetime
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from tarsy_scoring.web.api.common import SessionId, json_answer, operation_id
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Admitted
from tarsy_scoring.web.edge.problems import Problem
from tarsy_scoring.web.score_requests import IdempotencyKey, ScoreRequest, request_score


class TarsyError(BaseModel):
    """A refusal in TARSy's words."""

    message: str


class Started(BaseModel):
    """The new score."""

    score_id: str


class TarsyScore(BaseModel):
    """A score with TARSy's keys, all always present."""

    model_config = ConfigDict(protected_namespaces=())

    score_id: str
    total_score: int | None = Field(ge=0, le=100)
    score_analysis: str | None
    tool_improvement_report: str | None
    failure_tags: list[str] | None = Field(description="Null until the score is completed.")
    prompt_hash: str | None
    score_triggered_by: str
    status: str = Field(examples=["pending", "in_progress", "completed", "failed", "timed_out", "cancelled"])
    stage_id: str | None
    started_at: datetime = Field(description="Time of the request while the score is pending.")
    completed_at: datetime | None
    error_message: str | None


router = APIRouter(prefix="/api/v1", tags=["tarsy"], generate_unique_id_function=operation_id)


@router.post(
    "/sessions/{session_id}/score",
    summary="Score a session again, as TARSy does",
    status_code=202,
    responses={
        202: {"model": Started, "description": "A new score."},
        404: {"model": TarsyError, "description": "No such session."},
        409: {"description": "The session has not ended, or a score is under way."},
    },
)
async def start(
    request: Request, caller: Admitted, session_id: SessionId, idempotency_key: IdempotencyKey = None
) -> Response:
    """
    Make a new score for a session that has ended, whatever scores exist. A repeat under the key returns it.
    """
    found, _ = await request_score(
        request, caller, session_id, ScoreRequest(force_rescore=True), idempotency_key
    )
    return json_answer({"score_id": str(found.score_id)}, 202)


@router.get(
    "/sessions/{session_id}/score",
    summary="Read the newest score of a session, as TARSy does",
    responses={
        200: {"model": TarsyScore},
        404: {"description": "There is no such session, or it has no score."},
    },
)
async def read(request: Request, session_id: SessionId) -> Response:
    """The newest score, whatever the status: a failed one hides an older completed one, as in TARSy."""
    row = await context_of(request).reader.newest_score(session_id, "production")
    if row is None:
        raise Problem(404, "No score", f"no score of a session {session_id} is stored")
    return json_answer(_score(row))


def _score(row: dict[str, Any]) -> dict[str, Any]:
    """A `session_scores` row with TARSy's keys."""
    columns = {"tool_improvement_report": "missing_tools_analysis", "prompt_hash": "criteria_hash"}
    score = {key: row[columns.get(key, key)] for key in TarsyScore.model_fields}
    score["started_at"] = row["started_at"] or row["created_at"]
    if row["status"] != "completed":
        score["failure_tags"] = None
    return score
