"""The page that counts scores per band, and averages their categories."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from tarsy_scoring.analytics import analytics
from tarsy_scoring.analytics.analytics import BandCount, CategoryAverage, Distribution
from tarsy_scoring.judge.criteria import Criteria
from tarsy_scoring.scores.bands import DEFAULT_BANDS
from tarsy_scoring.web.api.browse import bands_for
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Analysing
from tarsy_scoring.web.pages.period import FIELDS, KIND, PeriodForm, period_page, requested_period
from tarsy_scoring.web.pages.score_view import in_order
from tarsy_scoring.web.pages.words import OUTCOMES, Tone, tone_of

router = APIRouter(include_in_schema=False)


@router.get("/distribution")
async def distribution_page(request: Request, _: Analysing) -> HTMLResponse:
    """How many scores each band holds, and their averages per category."""
    context, form = context_of(request), requested_period(request, KIND)
    if form.faults:
        return await period_page(request, "distribution.html", form)
    bands = bands_for(context, form.selection.criteria)
    found = await analytics.distribution(context.analytics.database, form.selection, bands)
    return await period_page(
        request,
        "distribution.html",
        form,
        found=found,
        count=sum(band.count for band in found.bands) + found.between_bands,
        bands=band_rows(found, form, is_default=bands == DEFAULT_BANDS),
        categories=category_rows(found, context.registry),
    )


def band_rows(
    found: Distribution, form: PeriodForm, *, is_default: bool
) -> list[tuple[BandCount, str, Tone, str]]:
    """
    The bands, highest first, each with name, tone and the address that lists the sessions in it.

    Args:
        is_default: Whether these are the default bands, which have ranges as names.
    """
    rows = []
    for band in reversed(found.bands):
        name = f"{band.low} to {band.high}" if is_default else band.band.replace("_", " ")
        tone: Tone = tone_of(band.low) if is_default else OUTCOMES.get(band.band, "plain")
        chosen = {name: form.values[name] for name in FIELDS if form.values[name]}
        address = f"/?{urlencode({'min_score': band.low, 'max_score': band.high} | chosen)}"
        rows.append((band, name, tone, address))
    return rows


def category_rows(
    found: Distribution, registry: Iterable[Criteria]
) -> list[tuple[str, list[tuple[CategoryAverage, float | None, list[float | None]]]]]:
    """
    Rows by criteria, because these are not comparable, in the order that the criteria define.

    Returns:
        The average over all totals, the highest possible value (None if the criteria are not configured
        here), and the average in each band (None if no score in it has the category).
    """
    known = {criteria.name: _highest_values(criteria) for criteria in registry}
    in_bands = [{(c.criteria, c.category): c.average for c in b.categories} for b in reversed(found.bands)]
    by_criteria = defaultdict[str, dict[str, Any]](dict)
    for one in found.categories:
        most = known.get(one.criteria or "", {}).get(one.category, 0.0)
        by_band = [averages.get((one.criteria, one.category)) for averages in in_bands]
        # Earlier criteria with that name may have allowed more points.
        row = one, most if one.average <= most else None, by_band
        by_criteria[one.criteria or ""][one.category] = row
    return [
        (name, list(in_order(rows, known.get(name, {})).values()))
        for name, rows in sorted(by_criteria.items())
    ]


def _highest_values(criteria: Criteria) -> dict[str, float]:
    """By category: points, or 1 for a rubric item."""
    return {**criteria.max_points, **{item.id: 1.0 for item in criteria.rubric}}
