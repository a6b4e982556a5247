"""The page that counts scores per band, and averages their categories, for each criteria."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from tarsy_scoring.analytics import analytics
from tarsy_scoring.analytics.analytics import BandCount, CategoryAverage, CriteriaTotals
from tarsy_scoring.judge.criteria import CriteriaRegistry
from tarsy_scoring.scores.bands import Tone, show_band
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Analysing
from tarsy_scoring.web.pages.period import FIELDS, KIND, PeriodForm, period_page, requested_period
from tarsy_scoring.web.pages.score_view import in_order

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Group:
    """
    The totals under one criteria.

    Args:
        bands: Highest first, each with word, tone and the address that lists the sessions in it.
        categories: In the order that the criteria define, each with the highest possible value (None if the
            criteria are not configured here), and the average in each band (None if no score in it has the
            category).
    """

    found: CriteriaTotals
    count: int
    bands: list[tuple[BandCount, str, Tone, str]]
    categories: list[tuple[CategoryAverage, float | None, list[float | None]]]


@router.get("/distribution")
async def distribution_page(request: Request, _: Analysing) -> HTMLResponse:
    """How many scores each band holds, and their averages per category."""
    context, form = context_of(request), requested_period(request, KIND)
    if form.faults:
        return await period_page(request, "distribution.html", form)
    database, registry = context.analytics.database, context.registry
    found = await analytics.distribution(database, form.selection, registry.bands)
    groups = [show_group(one, form, registry) for one in found.criteria]
    return await period_page(
        request, "distribution.html", form, without_total=found.without_total, groups=groups
    )


def show_group(found: CriteriaTotals, form: PeriodForm, registry: CriteriaRegistry) -> Group:
    """The totals under one criteria as the page shows them."""
    chosen = {name: form.values[name] for name in FIELDS if form.values[name]}
    chosen |= {"criteria": found.criteria} if found.criteria else {}
    bands = []
    for band in reversed(found.bands):
        word, tone = show_band(band.low, registry.bands(found.criteria))
        address = f"/?{urlencode({'min_score': band.low, 'max_score': band.high} | chosen)}"
        bands.append((band, word, tone, address))
    count = sum(band.count for band in found.bands) + found.between_bands
    return Group(found, count, bands, _category_rows(found, registry))


def _category_rows(found: CriteriaTotals, registry: CriteriaRegistry) -> list[Any]:
    """The rows of `Group.categories`."""
    known: dict[str, float] = {}  # by category: points, or 1 for a rubric item
    if found.criteria and found.criteria in registry:
        criteria = registry.get(found.criteria)
        known = {**criteria.max_points, **{item.id: 1.0 for item in criteria.rubric}}
    in_bands = [{c.category: c.average for c in band.categories} for band in reversed(found.bands)]
    rows: dict[str, Any] = {}
    for one in found.categories:
        most = known.get(one.category, 0.0)
        by_band = [averages.get(one.category) for averages in in_bands]
        # Earlier criteria with that name may have allowed more points.
        rows[one.category] = one, most if one.average <= most else None, by_band
    return list(in_order(rows, known).values())
