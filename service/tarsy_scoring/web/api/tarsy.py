"""
Scores at TARSy's own addresses, with TARSy's keys, statuses and errors, for clients written for TARSy.

Source: TARSy's REST API at commit c35f0f75.
"""

from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any

from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from tarsy_scoring.postgres.database import DatabaseAway
from tarsy_scoring.web.api.common import SessionId, json_answer, operation_id
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Reading, Scoring
from tarsy_scoring.web.edge.problems import Problem, database_away
from tarsy_scoring.web.score_requests import IdempotencyKey, ScoreRequest, request_score

NOT_FOUND = "resource not found"
NOT_TERMINAL = "session is not in a terminal state"
UNDER_WAY = "scoring already in progress for this session"
UNAVAILABLE = "scoring service is not available"
# Our status -> TARSy's status and message. Others keep their status and our detail.
_TARSY_ANSWERS = {
    400: (409, NOT_TERMINAL),
    404: (404, NOT_FOUND),
    409: (409, UNDER_WAY),
    503: (503, UNAVAILABLE),
}


class TarsyError(BaseModel):
    """A refusal in TARSy's shape. Refusals that TARSy does not have carry the members of a problem, too."""

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


class _TarsyRoute(APIRoute):
    """Answers refusals with TARSy's statuses and messages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_in_tarsys_words(request: Request) -> Response:
            try:
                return await handle(request)
            except Problem as problem:
                return _refusal(problem)
            except DatabaseAway:
                return _refusal(database_away())
            except RequestValidationError as error:
                fault = error.errors()[0]
                if fault["loc"][0] == "path":  # TARSy looks a malformed id up and finds no session
                    return _refusal(Problem(404, "", ""))
                return _refusal(Problem(422, "", f"{fault['loc'][-1]}: {fault['msg']}"))

        return handle_in_tarsys_words


def _refusal(problem: Problem) -> Response:
    status, message = _TARSY_ANSWERS.get(problem.status, (problem.status, problem.detail))
    return json_answer({"message": message}, status, problem.headers)


router = APIRouter(
    prefix="/api/v1", tags=["tarsy"], route_class=_TarsyRoute, generate_unique_id_function=operation_id
)


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
    request: Request, caller: Scoring, session_id: SessionId, idempotency_key: IdempotencyKey = None
) -> Response:
    """
    Make a new score for a session that has ended, whatever scores exist. A repeat under the key returns it.
    """
    found = await request_score(
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
async def read(request: Request, _: Reading, session_id: SessionId) -> Response:
    """The newest score, whatever the status: a failed one hides an older completed one, as in TARSy."""
    row = await context_of(request).reader.newest_score(session_id, "production")
    if row is None:
        raise Problem(404, "No score", NOT_FOUND)
    return json_answer(_score(row))


def _score(row: dict[str, Any]) -> dict[str, Any]:
    """A `session_scores` row with TARSy's keys."""
    columns = {"tool_improvement_report": "missing_tools_analysis", "prompt_hash": "criteria_hash"}
    score = {key: row[columns.get(key, key)] for key in TarsyScore.model_fields}
    score["started_at"] = row["started_at"] or row["created_at"]
    if row["status"] != "completed":
        score["failure_tags"] = None
    return score
