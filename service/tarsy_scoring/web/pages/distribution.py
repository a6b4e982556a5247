"""The page that counts scores per band, and averages their categories."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from tarsy_scoring.analytics import analytics
from tarsy_scoring.analytics.analytics import BandCount, Distribution
from tarsy_scoring.judge.criteria import Criteria
from tarsy_scoring.scores.bands import bands_of
from tarsy_scoring.web.context import AppContext, context_of
from tarsy_scoring.web.edge.access import Analysing
from tarsy_scoring.web.pages.downloads import csv_file, download_form
from tarsy_scoring.web.pages.period import (
    FIELDS,
    KIND,
    PeriodForm,
    period_page,
    requested_period,
)
from tarsy_scoring.web.pages.score_view import in_order
from tarsy_scoring.web.pages.words import OUTCOMES, Tone, tone_of

router = APIRouter(include_in_schema=False)


@router.get("/distribution")
async def distribution_page(request: Request, _: Analysing) -> HTMLResponse:
    """How many scores each band holds, and their averages per category."""
    context, form = context_of(request), requested_period(request, KIND)
    if form.faults:
        return await period_page(request, "distribution.html", form)
    found = await _read(context, form)
    is_default = not _own_bands(context, form)
    return await period_page(
        request,
        "distribution.html",
        form,
        found=found,
        count=sum(band.count for band in found.bands) + found.between_bands,
        bands=band_rows(found, form, is_default=is_default),
        categories=category_rows(found, context.registry),
    )


@router.get("/distribution.csv")
async def distribution_file(request: Request, _: Analysing) -> Response:
    """A row for each band, highest first, followed by the categories."""
    found = await _read(context_of(request), download_form(request, KIND))
    rows: list[tuple[object, ...]] = []
    for band in reversed(found.bands):
        limits = band.band, band.low, band.high
        rows.append((*limits, None, None, None, band.count))
        rows += [(*limits, c.criteria, c.category, c.average, c.count) for c in band.categories]
    return csv_file("distribution", "band lowest highest criteria category average scores", rows)


async def _read(context: AppContext, form: PeriodForm) -> Distribution:
    bands = bands_of(_own_bands(context, form))
    return await analytics.distribution(context.analytics.database, form.selection, bands)


def _own_bands(context: AppContext, form: PeriodForm) -> Mapping[str, tuple[int, int]]:
    """Bands that the chosen criteria define; empty if none or unknown."""
    criteria = form.selection.criteria
    return context.registry.get(criteria).bands if criteria and criteria in context.registry else {}


@dataclass(frozen=True, slots=True)
class BandRow:
    """
    A band, and the address that lists the sessions in it.

    Args:
        share: Relative to all totals.
        length: Bar length relative to the largest band.
    """

    name: str
    range: str
    count: int
    share: float
    length: float
    tone: Tone
    sessions: str


def band_rows(found: Distribution, form: PeriodForm, *, is_default: bool) -> list[BandRow]:
    """
    The bands, highest first.

    Args:
        is_default: Whether these are the default bands, which have ranges as names.
    """
    count = sum(band.count for band in found.bands) + found.between_bands
    most = max((band.count for band in found.bands), default=0)

    def row(band: BandCount) -> BandRow:
        limits = f"{band.low} to {band.high}"
        name = limits if is_default else band.band.replace("_", " ")
        tone: Tone = tone_of(band.low) if is_default else OUTCOMES.get(band.band, "plain")
        sought = {"min_score": band.low, "max_score": band.high} | {
            n: form.values[n] for n in FIELDS if form.values[n]
        }
        share, length = band.count / max(count, 1), band.count / max(most, 1)
        return BandRow(name, limits, band.count, share, length, tone, f"/?{urlencode(sought)}")

    return [row(band) for band in reversed(found.bands)]


@dataclass(frozen=True, slots=True)
class CategoryRow:
    """
    A category averaged over all totals and per band; None in a band whose scores lack the category.

    Args:
        most: Highest possible value; None if the criteria are not configured here.
    """

    category: str
    average: float
    count: int
    most: float | None
    by_band: list[float | None]


def category_rows(found: Distribution, registry: Iterable[Criteria]) -> list[tuple[str, list[CategoryRow]]]:
    """Rows by criteria, because these are not comparable, in the order that the criteria define."""
    # The highest value per category: points, or 1 for a rubric item.
    known = {c.name: {**c.max_points, **{item.id: 1.0 for item in c.rubric}} for c in registry}
    in_bands = [{(c.criteria, c.category): c.average for c in b.categories} for b in reversed(found.bands)]
    by_criteria: defaultdict[str, dict[str, CategoryRow]] = defaultdict(dict)
    for one in found.categories:
        name = one.criteria or ""
        most = known.get(name, {}).get(one.category, 0.0)
        by_band = [averages.get((one.criteria, one.category)) for averages in in_bands]
        # Earlier criteria with that name may have allowed more points.
        shown_most = most if one.average <= most else None
        row = CategoryRow(one.category, one.average, one.count, shown_most, by_band)
        by_criteria[name][one.category] = row
    return [
        (name, list(in_order(rows, known.get(name, {})).values()))
        for name, rows in sorted(by_criteria.items())
    ]
