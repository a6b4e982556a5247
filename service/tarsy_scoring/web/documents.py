"""
API documents as models, for JSON Schema and OpenAPI. The service builds answers from rows.

`scores/fields` declares the fields, `scores/shapes` what they hold.
"""

from typing import Any

from pydantic import BaseModel, Field, create_model

from tarsy_scoring.scores.fields import SCORE_FIELDS
from tarsy_scoring.scores.shapes import Part


class RequestFault(BaseModel):
    """One fault in a request and where it is, without the value."""

    loc: list[str | int]
    msg: str


class ProblemDocument(BaseModel):
    """A refusal or failure as in RFC 9457. Some kinds have more members."""

    type: str = Field(description="The kind of problem. Programs may branch on it.")
    title: str = Field(description="The kind in words.")
    status: int = Field(ge=400, le=599)
    detail: str = Field(description="What happened, why, and what would help.")
    instance: str = Field(description="This occurrence; ends in the request id, which the log has as well.")
    errors: list[RequestFault] | None = Field(None, description="Only with 422: the faults of the request.")


def _score_fields() -> dict[str, Any]:
    return {f.name: (f.type, ... if f.is_always_there else None) for f in SCORE_FIELDS if f.is_shown}


# The fields are known only when this module is loaded, so mypy cannot see them; nothing here reads one.
class ScoreDocument(create_model("_ScoreFields", __base__=Part, **_score_fields())):  # type: ignore[misc]
    """One scoring for one session, the same shape everywhere. A failure is never a number."""
