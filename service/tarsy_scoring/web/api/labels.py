"""Routes of human labels: labels of a score, and trust cards of judges."""

import asyncio
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Self
from uuid import UUID

from fastapi import Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, model_validator

from tarsy_scoring.labels import labels
from tarsy_scoring.labels.calibration import Source, TrustCard, read_outcome
from tarsy_scoring.labels.labels import MAX_REASON, NewLabel
from tarsy_scoring.timeline.clean.masking import mask_secrets, masking_of
from tarsy_scoring.web.api.common import (
    NO_SUCH_SCORE,
    PLAIN_TEXT,
    ScoreId,
    json_answer,
    no_such_score,
    scoring_routes,
)
from tarsy_scoring.web.context import AppContext, context_of
from tarsy_scoring.web.edge.access import Admitted, Analysing
from tarsy_scoring.web.edge.problems import Problem, malformed
from tarsy_scoring.web.queries import TrustQuery

router = scoring_routes("labels")


class LabelRequest(BaseModel):
    """A reviewer's label of a score: agreement, or the right outcome and total."""

    model_config = ConfigDict(strict=True, extra="forbid")

    agrees: bool | None = Field(
        None, description="Agreement with band and total. If true, `outcome` and `number` must be left out."
    )
    outcome: str | None = Field(
        None,
        min_length=1,
        max_length=255,
        pattern=PLAIN_TEXT,
        description="The right outcome: a band of the score's criteria, or correct, partial or wrong.",
    )
    number: float | None = Field(None, ge=0, le=100, allow_inf_nan=False, description="The right total.")
    reason: str | None = Field(None, max_length=MAX_REASON, pattern=PLAIN_TEXT)

    @model_validator(mode="after")
    def _require_agreement_or_values(self) -> Self:
        has_own = self.outcome is not None or self.number is not None
        if self.agrees and has_own:
            raise ValueError("set either `agrees`, or `outcome` and `number`, not both")
        if not (self.agrees or has_own):
            raise ValueError("the label is empty: set `agrees`, or give `outcome`, `number` or both")
        return self


class LabelDocument(BaseModel):
    """A stored label."""

    label_id: int
    score_id: UUID = Field(
        description="The score on which it was given. A review in TARSy is about each score."
    )
    session_id: str
    source: Source
    by: str
    at: datetime
    agrees: bool | None
    outcome: str | None
    number: Annotated[float, Field(ge=0, le=100)] | None
    reason: str | None
    is_random: bool = Field(description="Whether the score was in the random part of the review list.")


class Labels(BaseModel):
    """Labels of a score, newest first. Of each reviewer the newest on the session counts."""

    labels: list[LabelDocument]


class TrustCards(BaseModel):
    """Trust cards, most labels first."""

    cards: list[TrustCard]


# --- labels --------------------------------------------------------------------------------------------


@router.post(
    "/scores/{score_id}/labels",
    summary="Label a score",
    status_code=201,
    responses={
        201: {"model": LabelDocument, "description": "The label is stored."},
        404: NO_SUCH_SCORE,
        409: {"description": "The score is not completed, or has no number."},
    },
)
async def label_score(request: Request, caller: Admitted, score_id: ScoreId, said: LabelRequest) -> Response:
    """
    Agree with a score, or give the right outcome and number, with a reason.

    Every label is stored with author and time. The newest label of each author counts.
    """
    return json_answer(await keep_label(context_of(request), score_id, said, caller.name, "api"), 201)


@router.get(
    "/scores/{score_id}/labels",
    summary="Read the labels of a score",
    responses={200: {"model": Labels}, 404: NO_SUCH_SCORE},
)
async def read_labels(request: Request, score_id: ScoreId) -> Response:
    """The labels of a score and the review of the session in TARSy, newest first, at most 500."""
    database = context_of(request).reader.database
    found = await labels.of_score(database, score_id)
    if not found and await labels.subject(database, score_id) is None:
        raise no_such_score(score_id)
    return json_answer({"labels": found})


async def keep_label(
    context: AppContext, score_id: UUID, said: LabelRequest, by: str, source: Source
) -> dict[str, Any]:
    """
    Store a label that came over the API or a form.

    Raises:
        Problem: 404 there is no such score, 409 it has no number, 422 the criteria have no such band, or the
            number lies outside of it.
    """
    database = context.reader.database
    about = await labels.subject(database, score_id)
    if about is None:
        raise no_such_score(score_id)
    if not about.can_be_labelled:
        why = "has no number" if about.status == "completed" else f"is {about.status}"
        detail = f"the score {score_id} {why}: only a completed one with a number can be labelled"
        raise Problem(409, "Score not completed", detail, extra={"score_status": about.status})
    outcome = _outcome_of(said, [band.id for band in about.bands])
    if (band := labels.contradicted(outcome, said.number, about.bands)) is not None:
        detail = (
            f"`outcome` is the band {band.id!r} ({band.low}-{band.high}), and `number` ({said.number:g}) is "
            "outside of it: correct one of them, or leave one out"
        )
        raise malformed(["body", "number"], detail, "Outcome and number contradict each other")
    masking = masking_of(context.settings.config.masking_patterns)
    reason = await asyncio.to_thread(mask_secrets, said.reason or "", masking)
    new = NewLabel(said.agrees, outcome, said.number, reason or None)
    kept = await labels.add(database, score_id, new, by=by, source=source)
    if kept is None:
        raise no_such_score(score_id)  # deleted since it was read
    return kept


def _outcome_of(said: LabelRequest, bands: list[str]) -> str | None:
    """Raises: Problem: 422, an unknown outcome."""
    if said.outcome is None:
        return None
    with suppress(ValueError):
        if outcome := read_outcome(said.outcome, bands):
            return outcome
    detail = f"`outcome` must be one of {', '.join(bands)}, correct, partial, wrong"
    raise malformed(["body", "outcome"], detail, "Unknown outcome")


# --- trust cards ---------------------------------------------------------------------------------------


@router.get("/trust", summary="Read trust cards of judges")
async def read_trust(request: Request, _: Analysing, query: Annotated[TrustQuery, Query()]) -> TrustCards:
    """
    The trust card of each judge with labels: how well the scores agree with the labels.

    Kappa is weighted by the square of the distance between bands, with a 95 % interval. All labels of
    people count, also reviews in TARSy; `by_source` has the same for scores that were random and for the
    others, `sources` counts the labels by where they were given, and `coverage` compares sessions with labels
    with the others.
    """
    database = context_of(request).analytics.database
    return TrustCards(cards=await labels.trust_cards(database, query.criteria, query.fingerprint))
