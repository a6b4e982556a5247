"""Parameters and answers that several API routes share."""

from collections.abc import Mapping
from typing import Annotated, Any
from uuid import UUID

from fastapi import Path, Response
from pydantic_core import to_json

from tarsy_scoring.events import SESSION_ID_PATTERN
from tarsy_scoring.web.problems import Problem

PREFIX = "/api/v1/scoring"
PLAIN_TEXT = r"^[^\x00]*$"  # PostgreSQL stores no NUL
NO_SUCH_SCORE = {"description": "There is no such score."}

SessionId = Annotated[str, Path(pattern=f"^{SESSION_ID_PATTERN.pattern}$", examples=["7d1c6c9e"])]
ScoreId = Annotated[UUID, Path(examples=["0d9f7b1c-3a52-4f5e-9c1a-6f2d6d1f8e10"])]


def json_answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response. A `str` is sent unchanged, since it is JSON already."""
    body = content if isinstance(content, str) else to_json(content)
    return Response(body, status, headers, media_type="application/json")


def no_such_score(score_id: UUID) -> Problem:
    """404 for an unknown score id."""
    return Problem(404, "Unknown score", f"there is no score {score_id}")
