"""Health and the OpenAPI document."""

from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.responses import Response

from tarsy_scoring.web.api.common import operation_id

# A peer that reads no answers would otherwise fill the connection buffer, and hold a place that
# probes need.
LAST = {"Connection": "close"}

router = APIRouter(tags=["probes"], generate_unique_id_function=operation_id)


class ProbeAnswer(BaseModel):
    """How the process stands."""

    status: Literal["running", "ready", "not ready"]
    reason: str | None = Field(None, description="Why the process is not ready.")


@router.get("/healthz", summary="Whether the process runs", response_model_exclude_none=True)
async def healthz(response: Response) -> ProbeAnswer:
    """200 while the process answers. Needs no access."""
    response.headers.update(LAST)
    return ProbeAnswer(status="running")


@router.get(
    "/readyz",
    summary="Whether requests can be answered",
    response_model_exclude_none=True,
    responses={503: {"model": ProbeAnswer, "description": "The database does not answer."}},
)
async def readyz(request: Request, response: Response) -> ProbeAnswer:
    """
    200 while the database answers, which is asked at most once a second. A broker outage does not count,
    since the API works without it.
    """
    response.headers.update(LAST)
    state = request.app.state
    missing = await state.database_look() if state.has_started else "the database has not answered yet"
    if missing is None:
        return ProbeAnswer(status="ready")
    response.status_code = 503
    return ProbeAnswer(status="not ready", reason=missing)


@router.get("/openapi.json", include_in_schema=False)
async def openapi_json(request: Request) -> Response:
    """The OpenAPI document."""
    return JSONResponse(request.app.openapi())
