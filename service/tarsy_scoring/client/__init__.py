"""
A typed client of the HTTP API, for programs in Python that request and read scores.

`Client` blocks, `AsyncClient` is for asyncio; both have the same methods. Callers import every name from
here, and the
room imports nothing of the service.
"""

from tarsy_scoring.client.asynchronous import AsyncClient
from tarsy_scoring.client.errors import (
    ApiError,
    Conflict,
    NotFound,
    RequestRefused,
    TooManyRequests,
    Unauthorised,
    Unavailable,
)
from tarsy_scoring.client.models import (
    AlternativeApproach,
    ExportedScore,
    Gate,
    LatestAttempt,
    ListedScore,
    ListedSession,
    MissingTool,
    Score,
    Usage,
)
from tarsy_scoring.client.parameters import ExportFilters, SessionFilters
from tarsy_scoring.client.synchronous import Client

__all__ = [
    "AlternativeApproach",
    "ApiError",
    "AsyncClient",
    "Client",
    "Conflict",
    "ExportFilters",
    "ExportedScore",
    "Gate",
    "LatestAttempt",
    "ListedScore",
    "ListedSession",
    "MissingTool",
    "NotFound",
    "RequestRefused",
    "Score",
    "SessionFilters",
    "TooManyRequests",
    "Unauthorised",
    "Unavailable",
    "Usage",
]
