"""Answers of the API that report a refusal or failure, as models for JSON Schema and OpenAPI."""

from pydantic import BaseModel, Field


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
