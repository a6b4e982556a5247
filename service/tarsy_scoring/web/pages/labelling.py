"""Labels on the pages: the form and the trust card of a score, and the review list."""

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from pydantic import ConfigDict
from starlette.responses import HTMLResponse, RedirectResponse

from tarsy_scoring.labels import labels, review
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.web.api.labels import LabelRequest, keep_label
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Admitted, Analysing
from tarsy_scoring.web.edge.problems import Problem
from tarsy_scoring.web.pages.forms import form_fields, read_as
from tarsy_scoring.web.pages.rendering import page

router = APIRouter(include_in_schema=False)

LABELS_SHOWN = 20
CARDS_SHOWN = 4
AGREES, OUTCOME = "agrees", "outcome:"


class LabelForm(LabelRequest):
    """A label whose number is text."""

    model_config = ConfigDict(strict=False)


@router.get("/review")
async def review_page(request: Request, _: Analysing) -> HTMLResponse:
    """The scores of the review list, and the trust cards of the judges with most labels."""
    database = context_of(request).analytics.database
    found = await review.read_review(database)
    cards = await labels.trust_cards(database)
    return await asyncio.to_thread(
        page,
        "review.html",
        here="/review",
        found=found,
        days=review.DAYS,
        cards=cards[:CARDS_SHOWN],
        more_cards=len(cards) > CARDS_SHOWN,
    )


@router.post("/scores/{score_id}/labels")
async def label(request: Request, caller: Admitted, score_id: UUID) -> RedirectResponse:
    """Store a label as `POST /api/v1/scoring/scores/{score_id}/labels` does, and return to the score."""
    await keep_label(context_of(request), score_id, read_label_form(await request.body()), caller.name)
    return RedirectResponse(f"/scores/{score_id}#labels", 303)


def read_label_form(body: bytes) -> LabelRequest:
    """
    Read the form of a label.

    Raises:
        Problem: 422, the body is not a form, or the label is empty or contradicts itself.
    """
    fields = {name: value.strip() for name, value in form_fields(body).items()}
    said, number = fields.get("said", ""), fields.get("number", "")
    if said == AGREES and number:
        raise Problem(
            422, "Malformed request", "a label either agrees or gives another number: choose one of them"
        )
    label = {
        "agrees": said == AGREES if said else None,
        "outcome": said.removeprefix(OUTCOME) if said.startswith(OUTCOME) else None,
        "number": number or None,
        "reason": fields.get("reason") or None,
    }
    return read_as(LabelForm, label)


async def label_values(database: Database, document: Mapping[str, Any]) -> dict[str, Any]:
    """Values of `labels.html` on the page of a score."""
    subject = await labels.subject(database, document["score_id"])
    if subject is None or not subject.can_be_labelled:
        return {"can_label": False}
    given = await labels.of_score(database, subject.score_id, LABELS_SHOWN + 1)
    return {
        "can_label": True,
        "labels": given[:LABELS_SHOWN],
        "has_more_labels": len(given) > LABELS_SHOWN,
        "outcomes": [band.id for band in subject.bands],
    }
