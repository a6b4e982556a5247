"""
What several addresses answer alike: a document, and that there is no such score.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from fastapi import Response
from pydantic_core import to_json

from tarsy_scoring.web.context import Problem

NO_SUCH_SCORE = {"description": "There is no such score."}


def json_answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A document as JSON; a text is JSON already."""
    body = content if isinstance(content, str) else to_json(content)
    return Response(body, status, headers, media_type="application/json")


def no_such_score(score_id: UUID) -> Problem:
    """What is told where a score is asked for that is not there."""
    return Problem(404, "Unknown score", f"there is no score {score_id}")
