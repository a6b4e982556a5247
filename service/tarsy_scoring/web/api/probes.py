"""Health, metrics and the OpenAPI document."""

import asyncio
from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, Field
from starlette.responses import Response

from tarsy_scoring.postgres.database import DatabaseAway
from tarsy_scoring.web.context import context_of

READY_TIMEOUT_S = 2.0

router = APIRouter(tags=["probes"])


class Health(BaseModel):
    """State of the process."""

    status: Literal["running", "ready", "not ready"]
    reason: str | None = Field(None, description="Why the process is not ready.")


@router.get(
    "/healthz",
    summary="Whether the process runs",
    responses={200: {"model": Health, "description": "It runs."}},
)
async def healthz() -> Response:
    """200 while the process answers. Needs no access."""
    return JSONResponse({"status": "running"})


@router.get(
    "/readyz",
    summary="Whether requests can be answered",
    responses={
        200: {"model": Health, "description": "The database answers."},
        503: {"model": Health, "description": "The database does not answer."},
    },
)
async def readyz(request: Request) -> Response:
    """200 while the database answers. A broker outage does not count, since the API works without it."""
    if not request.app.state.lifecycle.has_started:
        return _not_ready("the database has not answered yet")
    context = context_of(request)
    database = context.reader.database
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            await database.once(lambda c: c.execute("SELECT 1"))
    except (DatabaseAway, TimeoutError):
        context.metrics.database_up.set(0)
        return _not_ready("the database does not answer")
    context.metrics.database_up.set(1)
    return JSONResponse({"status": "ready"})


@router.get("/openapi.json", include_in_schema=False)
async def openapi_json(request: Request) -> Response:
    """The OpenAPI document."""
    return JSONResponse(request.app.openapi())


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Text exposition."}},
)
async def metrics(request: Request) -> Response:
    """The metrics that docs/operations.md lists. No label holds an id."""
    return Response(
        generate_latest(context_of(request).metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
    )


def _not_ready(reason: str) -> Response:
    return JSONResponse({"status": "not ready", "reason": reason}, status_code=503)
