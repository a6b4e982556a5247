"""The figures of the insights pages as pictures and table rows."""

from datetime import date, timedelta
from urllib.parse import urlencode
from xml.etree import ElementTree

from tarsy_scoring.analytics.analytics import BandCount, CategoryAverage, Distribution, TrendPoint
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.scores.bands import DEFAULT_BANDS
from tarsy_scoring.web.pages.insights_view import DistributionView, distribution_view, meanings, trend_view
from tarsy_scoring.web.pages.period import PeriodForm, read_period_form

TODAY = date(2026, 3, 31)
METHOD = "investigation-methodology"


def point(day: int, judge: str | None = "a", count: int = 2, criteria: str = METHOD) -> TrendPoint:
    return TrendPoint(TODAY + timedelta(days=day), judge, criteria, 60.0, 50, 70, count)


def form(**query: str) -> PeriodForm:
    return read_period_form(urlencode(query).encode(), TODAY)


def category(name: str, average: float, criteria: str | None = METHOD) -> CategoryAverage:
    return CategoryAverage(criteria, name, average, 3)


def distributed(
    *counts: int, between: int = 0, categories: list[CategoryAverage] | None = None, **query: str
) -> DistributionView:
    """A distribution over the bands of the badges; categories stand in the lowest band as well."""
    bands = [
        BandCount(band.id, band.low, band.high, count, (categories or []) if place == 0 else [])
        for place, (band, count) in enumerate(zip(DEFAULT_BANDS, counts, strict=True))
    ]
    found = Distribution(bands, between, 0, categories or [])
    return distribution_view(found, load_criteria(), form(**query), "Scores", is_default=True)


# --- trends --------------------------------------------------------------------------------------------


def test_judges_and_rows_carry_the_mark_of_their_line() -> None:
    view = trend_view([point(0, "z"), point(1, "a", 5), point(2, "a", 1)], "Totals")
    assert [(j["number"], j["fingerprint"], j["count"]) for j in view.judges] == [(1, "z", 2), (2, "a", 6)]
    assert [(r["number"], r["is_break"]) for r in view.rows] == [(1, False), (2, True), (2, False)]
    assert view.count == 8
    assert "new judge: 2" in view.picture


def test_a_score_without_a_fingerprint_is_a_judge_of_its_own() -> None:
    view = trend_view([point(0, None), point(1, "a")], "Totals")
    assert [j["fingerprint"] for j in view.judges] == ["unknown", "a"]
    assert view.picture.count("<polyline") == 0


# --- distribution --------------------------------------------------------------------------------------


def test_bands_are_shares_of_all_totals() -> None:
    view = distributed(5, 3, 1, between=1)
    assert [(b.name, b.range, b.count, b.share) for b in view.bands] == [
        ("75 to 100", "75 to 100", 1, 0.1),
        ("50 to 74", "50 to 74", 3, 0.3),
        ("0 to 49", "0 to 49", 5, 0.5),
    ]
    assert view.count == 10
    looks = [e.get("class") for e in ElementTree.fromstring(view.picture).iter() if "filled" in e.get("class", "")]
    assert looks == ["filled good", "filled fair", "filled weak"]


def test_a_band_leads_to_its_sessions() -> None:
    assert distributed(0, 0, 1).bands[0].sessions == "/?min=75&max=100&since=2026-01-01"
    link = distributed(1, 0, 0, chain="a&b", since="", until="2026-03-01").bands[2].sessions
    assert link == "/?min=0&max=49&chain=a%26b&until=2026-03-01"


def test_categories_stand_under_their_criteria() -> None:
    view = distributed(
        *(1, 0, 0),
        categories=[
            category("consistency", 12.0),
            category("logical_flow", 10.0),
            category("made_up", 3.0),
            category("old", 0.5, "long-gone"),
        ],
    )
    assert [name for name, _ in view.categories] == [METHOD, "long-gone"]
    rows = view.categories[0][1]
    assert [(r.category, r.most) for r in rows] == [("logical_flow", 25), ("consistency", 25), ("made_up", None)]
    assert rows[0].by_band == [None, None, 10.0], "best band first, nothing where no score states it"
    assert view.categories[1][1][0].most is None


def test_a_value_of_a_rubric_is_at_most_one() -> None:
    criteria = next(c for c in load_criteria() if c.rubric)
    view = distributed(1, 0, 0, categories=[category(criteria.rubric[0].id, 0.4, criteria.name)])
    assert view.categories[0][1][0].most == 1.0


def test_an_average_beyond_todays_most_has_no_share() -> None:
    view = distributed(1, 0, 0, categories=[category("logical_flow", 30.0)])
    assert view.categories[0][1][0].most is None


def test_tags_have_a_meaning_where_criteria_know_them() -> None:
    known = meanings(load_criteria())
    assert "no entry shows" in known["hallucinated_evidence"]
    assert "made_up" not in known


def test_bands_of_criteria_have_no_colours_of_badges() -> None:
    found = Distribution([BandCount("partly_right", 35, 59, 2, [])], 0, 0, [])
    view = distribution_view(found, load_criteria(), form(), "Scores", is_default=False)
    assert view.bands[0].name == "partly right"
    assert "filled plain" in view.picture
    assert "partly right, 35 to 59" in view.picture
