"""Bands and categories of the page of the distribution."""

from datetime import date
from typing import Any
from urllib.parse import urlencode

from tarsy_scoring.analytics.analytics import BandCount, CategoryAverage, Distribution
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.scores.bands import DEFAULT_BANDS
from tarsy_scoring.web.pages.distribution import band_rows, category_rows
from tarsy_scoring.web.pages.period import read_period_form

METHOD = "investigation-methodology"


def distributed(*counts: int, between: int = 0, categories: Any = ()) -> Distribution:
    """A distribution over the bands of the badges; categories stand in the lowest band as well."""
    categories = [CategoryAverage(criteria, name, average, 3) for criteria, name, average in categories]
    bands = [
        BandCount(band.id, band.low, band.high, count, categories if place == 0 else [])
        for place, (band, count) in enumerate(zip(DEFAULT_BANDS, counts, strict=True))
    ]
    return Distribution(bands, between, 0, categories)


def rows(found: Distribution, *, is_default: bool = True, **query: str) -> list[Any]:
    form = read_period_form(urlencode(query).encode(), date(2026, 3, 31))
    return band_rows(found, form, is_default=is_default)


def test_default_bands_have_the_colours_of_badges() -> None:
    found = rows(distributed(5, 3, 1, between=1))
    assert [(band.count, name, tone) for band, name, tone, _ in found] == [
        (1, "75 to 100", "good"),
        (3, "50 to 74", "fair"),
        (5, "0 to 49", "weak"),
    ]


def test_bands_of_criteria_have_names() -> None:
    [(_, name, tone, _)] = rows(Distribution([BandCount("partly_right", 35, 59, 2, [])], 0, 0, []), is_default=False)
    assert (name, tone) == ("partly right", "plain")


def test_a_band_leads_to_its_sessions() -> None:
    found = distributed(1, 0, 1)
    assert rows(found)[0][3] == "/?min_score=75&max_score=100&since=2026-01-01"
    link = rows(found, chain="a&b", since="", until="2026-03-01")[2][3]
    assert link == "/?min_score=0&max_score=49&chain=a%26b&until=2026-03-01"


def test_categories_stand_under_their_criteria() -> None:
    """In the order of the criteria, with their most points, unless earlier criteria allowed more."""
    rubric = next(c for c in load_criteria() if c.rubric)
    found = distributed(
        *(1, 0, 0),
        categories=[
            *((METHOD, "consistency", 12.0), (METHOD, "logical_flow", 30.0), (METHOD, "made_up", 3.0)),
            *(("long-gone", "old", 0.5), (rubric.name, rubric.rubric[0].id, 0.4)),
        ],
    )
    by_criteria = dict(category_rows(found, load_criteria()))

    assert list(by_criteria) == sorted([METHOD, "long-gone", rubric.name])
    assert [(one.category, most) for one, most, _ in by_criteria[METHOD]] == [
        ("logical_flow", None),
        ("consistency", 25),
        ("made_up", None),
    ]
    assert by_criteria[METHOD][1][2] == [None, None, 12.0], "best band first"
    assert by_criteria["long-gone"][0][1] is None
    assert by_criteria[rubric.name][0][1] == 1.0
