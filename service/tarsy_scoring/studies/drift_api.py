"""The drift report's route: whether the agents or the judge changed the scores."""

from typing import Annotated

from fastapi import Query, Request
from pydantic import Field

from tarsy_scoring.studies.drift_report import DriftReport, read_report
from tarsy_scoring.studies.findings import MOST_SHOWN
from tarsy_scoring.web.api.common import scoring_routes
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Analysing
from tarsy_scoring.web.queries import OptionalMoment, OptionalWord, Parameters

router = scoring_routes("analytics", "/analytics")


class DriftQuery(Parameters):
    """Filters for findings."""

    chain: OptionalWord = Field(None, description="Name of a chain.", examples=["k8s"])
    criteria: OptionalWord = Field(None, description="Under criteria of this name.")
    since: OptionalMoment = Field(None, description="Found from this time on (RFC 3339).")
    limit: int = Field(20, ge=1, le=MOST_SHOWN, description="Number of findings.")


@router.get("/drift", summary="Tell changes of agents from changes of the judge")
async def drift(request: Request, _: Analysing, query: Annotated[DriftQuery, Query()]) -> DriftReport:
    """
    Findings of drift detection, newest first, and the anchors without a judgement by the current judge of
    their chain.

    Anchors are sessions that both judges judged. Their change is the judge's part; the rest of the change of
    ordinary sessions is the agents' part. Under one judge every change is the agents'. Changes are in points,
    later minus earlier; intervals have a confidence of 98 % with a new judge, and more under one judge.
    """
    context = context_of(request)
    database = context.analytics.database
    return await read_report(database, context.policy, query.chain, query.criteria, query.since, query.limit)
