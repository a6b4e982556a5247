"""Labels on pages: the form of a score, and the review page, which hides a total until it has a label."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from pydantic import ConfigDict
from starlette.responses import HTMLResponse, RedirectResponse

from tarsy_scoring.labels import labels, review
from tarsy_scoring.web.api.labels import LabelRequest, keep_label
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Admitted, Analysing
from tarsy_scoring.web.pages.forms import form_fields, read_as
from tarsy_scoring.web.pages.rendering import page
from tarsy_scoring.web.pages.score_view import score_values

router = APIRouter(include_in_schema=False)

AGREES, OUTCOME, SKIPPED = "agrees", "outcome:", "skip"


class LabelForm(LabelRequest):
    """A label whose number is text."""

    model_config = ConfigDict(strict=False)


@router.get("/review")
async def review_page(request: Request, caller: Analysing, after: UUID | None = None) -> HTMLResponse:
    """The score to label, the one before it (`after`), the list, and the trust cards of the judges."""
    context = context_of(request)
    reader, database = context.reader, context.analytics.database
    found = await review.read_review(database)
    said = await labels.of_score(database, after, 1) if after else []  # unseen without a label
    document = await reader.score(wanted) if (wanted := next_to_label(found["picks"], after)) else None
    return await asyncio.to_thread(
        page,
        "review.html",
        here="/review",
        criteria=context.registry,
        may_score="score" in caller.scopes,
        found=found,
        days=review.DAYS,
        cards=await labels.trust_cards(database),
        said=said,
        labelled=await reader.score(after) if after and said else None,
        **(await score_values(context, document["session_id"], document) if document else {"doc": None}),
    )


def next_to_label(picks: Sequence[Mapping[str, Any]], after: UUID | None) -> UUID | None:
    """The first score without a label behind `after`, or from the top; None: all have labels."""
    ids = [pick["score_id"] for pick in picks]
    start = ids.index(after) + 1 if after in ids else 0
    return next((pick["score_id"] for pick in [*picks[start:], *picks] if not pick["labels"]), None)


@router.post("/scores/{score_id}/labels")
async def label(request: Request, caller: Admitted, score_id: UUID) -> RedirectResponse:
    """
    Store a label as `POST /api/v1/scoring/scores/{score_id}/labels` does, and return to the score.

    From the review page it goes on to the next score, and a reviewer may skip one.
    """
    body = await request.body()
    fields = form_fields(body)
    if fields.get("said") != SKIPPED:
        await keep_label(context_of(request), score_id, read_label_form(body), caller.name, "page")
    shown = f"/review?after={score_id}" if "review" in fields else f"/scores/{score_id}#labels"
    return RedirectResponse(shown, 303)


def read_label_form(body: bytes) -> LabelRequest:
    """
    Read the form of a label.

    Raises:
        Problem: 422, the body is not a form, or the label is empty or contradicts itself.
    """
    fields = {name: value.strip() for name, value in form_fields(body).items()}
    said, number = fields.get("said", ""), fields.get("number", "")
    label = {
        "agrees": said == AGREES if said else None,
        "outcome": said.removeprefix(OUTCOME) if said.startswith(OUTCOME) else None,
        "number": number or None,
        "reason": fields.get("reason") or None,
    }
    return read_as(LabelForm, label)
