"""Bands and categories of one criteria on the page of the distribution."""

from datetime import date
from typing import Any
from urllib.parse import urlencode

from tarsy_scoring.analytics.analytics import BandCount, CategoryAverage, CriteriaTotals
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.web.pages.distribution import Group, show_group
from tarsy_scoring.web.pages.period import read_period_form

METHOD = "investigation-methodology"
CRITERIA = load_criteria()


def group(criteria: str | None, *counts: int, between: int = 0, categories: Any = (), **query: str) -> Group:
    """The bands of the criteria; categories stand in the lowest band as well."""
    categories = [CategoryAverage(name, average, 3) for name, average in categories]
    bands = [
        BandCount(band.id, band.low, band.high, count, categories if place == 0 else [])
        for place, (band, count) in enumerate(zip(CRITERIA.bands(criteria), counts, strict=True))
    ]
    form = read_period_form(urlencode(query).encode(), date(2026, 3, 31))
    return show_group(CriteriaTotals(criteria, bands, between, categories), form, CRITERIA)


def test_bands_have_words_and_colours_of_badges() -> None:
    for criteria, words in (("investigation", ["correct", "partial", "wrong"]), (None, ["75-100", "50-74", "0-49"])):
        shown = group(criteria, 5, 3, 1, between=1)
        assert shown.count == 10
        assert [(band.count, word, tone) for band, word, tone, _ in shown.bands] == list(
            zip((1, 3, 5), words, ("good", "fair", "weak"), strict=True)
        )


def test_a_band_leads_to_its_sessions() -> None:
    address = group("investigation", 1, 0, 1).bands[0][3]
    assert address == "/?min_score=60&max_score=100&since=2026-01-01&criteria=investigation"
    address = group(None, 1, 0, 1, chain="a&b", since="", until="2026-03-01").bands[2][3]
    assert address == "/?min_score=0&max_score=49&chain=a%26b&until=2026-03-01"


def test_categories_stand_in_the_order_of_the_criteria() -> None:
    """With their most points, unless earlier criteria allowed more."""
    rubric = next(c for c in CRITERIA if c.rubric)
    stated = ("consistency", 12.0), ("logical_flow", 30.0), ("made_up", 3.0)
    shown = group(METHOD, 1, 0, 0, categories=stated).categories

    assert [(one.category, most) for one, most, _ in shown] == [
        ("logical_flow", None),
        ("consistency", 25),
        ("made_up", None),
    ]
    assert shown[1][2] == [None, None, 12.0], "best band first"
    assert group("long-gone", 1, 0, 0, categories=[("old", 0.5)]).categories[0][1] is None
    assert group(rubric.name, 1, 0, 0, categories=[(rubric.rubric[0].id, 0.4)]).categories[0][1] == 1.0
