"""Parameters and answers that several API routes share."""

from collections.abc import Mapping
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Response
from fastapi.routing import APIRoute
from pydantic_core import to_json

from tarsy_scoring.events import SESSION_ID_PATTERN
from tarsy_scoring.web.context import AppContext
from tarsy_scoring.web.edge.problems import Problem
from tarsy_scoring.web.queries import known_parameters_once

PREFIX = "/api/v1/scoring"
CRITERIA_HASH = r"^[A-Za-z0-9_-]+$"
PLAIN_TEXT = r"^[^\x00]*$"  # PostgreSQL stores no NUL
NO_SUCH_SCORE = {"description": "There is no such score."}

SessionId = Annotated[str, Path(pattern=f"^{SESSION_ID_PATTERN.pattern}$", examples=["7d1c6c9e"])]
CriteriaHash = Annotated[str, Path(min_length=1, max_length=255, pattern=CRITERIA_HASH)]
ScoreId = Annotated[UUID, Path(examples=["0d9f7b1c-3a52-4f5e-9c1a-6f2d6d1f8e10"])]


def operation_id(route: APIRoute) -> str:
    """How OpenAPI names a route."""
    return f"{route.tags[0]}_{route.name}"


def scoring_routes(tag: str, path: str = "") -> APIRouter:
    """Routes under `/api/v1/scoring`, which refuse repeated and unknown query parameters."""
    # TARSy's spelling ignores unknown parameters as TARSy does, and a WebSocket has none.
    return APIRouter(
        prefix=PREFIX + path,
        tags=[tag],
        dependencies=[Depends(known_parameters_once)],
        generate_unique_id_function=operation_id,
    )


def json_answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response. A `str` is sent unchanged, since it is JSON already."""
    body = content if isinstance(content, str) else to_json(content)
    return Response(body, status, headers, media_type="application/json")


def no_such_score(score_id: UUID) -> Problem:
    """404 for an unknown score id."""
    return Problem(404, "Unknown score", f"there is no score {score_id}")


async def require_score(context: AppContext, score_id: UUID) -> dict[str, Any]:
    """The document of a score. Raises: Problem: 404."""
    document = await context.reader.score(score_id)
    if document is None:
        raise no_such_score(score_id)
    return document


async def find_criteria(context: AppContext, criteria_hash: str) -> dict[str, Any] | None:
    """
    Find criteria by hash, stored ones first, else configured ones, which have no first use.
    """
    if (stored := await context.reader.criteria(criteria_hash)) is not None:
        return stored
    for current in context.registry.in_use(context.settings.config):
        if current.criteria_hash == criteria_hash:
            known = {"criteria_hash": criteria_hash, "name": current.name, "content": current.content}
            return known | {"first_used_at": None}
    return None
