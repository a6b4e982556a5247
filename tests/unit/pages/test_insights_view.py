"""What the forms of the pages across sessions mean, and how numbers become pictures and rows."""

from datetime import UTC, date, datetime, timedelta
from urllib.parse import parse_qsl
from xml.etree import ElementTree

import pytest

from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.records.analytics import BandCount, CategoryAverage, Distribution, TrendPoint
from tarsy_scoring.statistics.agreement import DEFAULT_BANDS
from tarsy_scoring.web.pages.insights_view import (
    DAY_OF,
    SORT,
    Asked,
    DistributionView,
    asked,
    distribution_view,
    meanings,
    trend_view,
)

TODAY = date(2026, 3, 31)
METHOD = "investigation-methodology"


def point(day: int, judge: str | None = "a", count: int = 2, criteria: str = METHOD) -> TrendPoint:
    return TrendPoint(TODAY + timedelta(days=day), judge, criteria, 60.0, 50, 70, count)


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
    return distribution_view(found, load_criteria(), asked(query, TODAY), "Scores", is_default=True)


# --- the form ------------------------------------------------------------------------------------------


def test_without_a_word_about_time_it_is_the_last_days() -> None:
    """Ninety of them, today among them, and the form shows it."""
    found = asked({}, TODAY)
    assert found.values["since"] == "2026-01-01"
    assert found.selection.since == datetime(2026, 1, 1, tzinfo=UTC)
    assert found.selection.until is None
    assert (found.selection.chain, found.selection.criteria, found.faults) == (None, None, [])


def test_an_emptied_day_is_no_bound() -> None:
    """Who takes the day out of the form sees all time, and not the last days again."""
    found = asked({"since": "", "until": ""}, TODAY)
    assert (found.selection.since, found.selection.until) == (None, None)
    assert found.period == "all time"


def test_both_days_belong_to_the_period() -> None:
    """From the beginning of the first to the end of the last, in UTC; one day is a period."""
    found = asked({"since": "2026-02-28", "until": "2026-02-28", "chain": " databases "}, TODAY)
    assert found.selection.since == datetime(2026, 2, 28, tzinfo=UTC)
    assert found.selection.until == datetime(2026, 3, 1, tzinfo=UTC)
    assert found.selection.chain == "databases"
    assert found.faults == []


@pytest.mark.parametrize(
    ("query", "period"),
    [
        ({"since": "2026-01-01", "until": "2026-01-31"}, "2026-01-01 to 2026-01-31"),
        ({"since": "2026-01-01"}, "since 2026-01-01"),
        ({"until": "2026-01-31"}, "until 2026-01-31"),
    ],
    ids=["both", "from", "to"],
)
def test_a_period_in_words(query: dict[str, str], period: str) -> None:
    """As it stands above the picture."""
    assert asked(query, TODAY).period == period


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ({"since": "yesterday"}, "from: a day such as 2026-01-31"),
        ({"until": "2026-02-30"}, "to: a day such as 2026-01-31"),
        ({"until": "9999-12-31"}, "to: a day such as 2026-01-31"),
        ({"since": "0001-01-01"}, "from: a day such as 2026-01-31"),
        ({"since": "2026-03-02", "until": "2026-03-01"}, "from: the earlier day comes first"),
        ({"chain": "x" * 256}, "chain: at most 255 characters, all of them visible"),
        ({"chain": "a\0b"}, "chain: at most 255 characters, all of them visible"),
        ({"criteria": "a\ud800"}, "criteria: at most 255 characters, all of them visible"),
        ({"sort": "beauty"}, "most wanted by: there is no such choice"),
    ],
    ids=["no day", "no such day", "last day", "first day", "reversed", "long", "NUL", "half a character", "choice"],
)
def test_what_cannot_be_meant_is_told(query: dict[str, str], fault: str) -> None:
    """In the words of the form, and nothing else is wrong."""
    assert asked(query, TODAY, SORT).faults == [fault]


def test_the_first_option_is_chosen_where_nobody_chose() -> None:
    """Also where the field is empty."""
    assert [asked(query, TODAY, DAY_OF).chosen for query in ({}, {"day_of": ""}, {"day_of": "ended"})] == [
        "scored",
        "scored",
        "ended",
    ]


# --- trends --------------------------------------------------------------------------------------------


def test_judges_and_rows_carry_the_mark_of_their_line() -> None:
    """The number and shape in the picture are those in the list of judges and in the table."""
    view = trend_view([point(0, "z"), point(1, "a", 5), point(2, "a", 1)], "Totals")
    assert [(j.number, j.fingerprint, j.count) for j in view.judges] == [(1, "z", 2), (2, "a", 6)]
    assert [(r.number, r.is_break) for r in view.rows] == [(1, False), (2, True), (2, False)]
    assert view.rows[1].mark == view.judges[1].mark
    assert view.count == 8
    assert "new judge: 2" in view.picture


def test_a_score_without_a_fingerprint_is_a_judge_of_its_own() -> None:
    """It is never joined to one that is known."""
    view = trend_view([point(0, None), point(1, "a")], "Totals")
    assert [j.fingerprint for j in view.judges] == ["unknown", "a"]
    assert view.picture.count("<polyline") == 0


def test_no_points_are_no_picture() -> None:
    """The page says so in words."""
    view = trend_view([], "Totals")
    assert (view.picture, view.judges, view.rows, view.count) == ("", [], [], 0)


# --- distribution --------------------------------------------------------------------------------------


def test_bands_are_shares_of_all_totals() -> None:
    """The best first; totals that no band holds are part of the whole."""
    view = distributed(5, 3, 1, between=1)
    assert [(b.name, b.range, b.count, b.share) for b in view.bands] == [
        ("good", "75 to 100", 1, 0.1),
        ("fair", "50 to 74", 3, 0.3),
        ("weak", "0 to 49", 5, 0.5),
    ]
    assert view.count == 10
    looks = [e.get("class") for e in ElementTree.fromstring(view.picture).iter() if "filled" in e.get("class", "")]
    assert looks == ["filled good", "filled fair", "filled weak"]


def test_a_band_leads_to_its_sessions() -> None:
    """With the filters of the form, its days among them, and nothing that is not asked."""
    assert distributed(0, 0, 1).bands[0].sessions == "/?min=75&max=100&since=2026-01-01"
    link = distributed(1, 0, 0, chain="a&b", since="", until="2026-03-01").bands[2].sessions
    assert link == "/?min=0&max=49&chain=a%26b&until=2026-03-01"


def test_all_time_keeps_the_rest_of_the_form() -> None:
    """Emptied days, where a missing word about time would be the last days again."""
    query = dict(parse_qsl(asked({"chain": "a&b"}, TODAY).all_time, keep_blank_values=True))
    again = asked(query, TODAY)
    assert (again.values["chain"], again.period) == ("a&b", "all time")


def test_no_totals_are_no_picture() -> None:
    """And no division by nothing."""
    view = distributed(0, 0, 0)
    assert view.picture == ""
    assert [band.share for band in view.bands] == [0.0, 0.0, 0.0]


def test_categories_stand_under_their_criteria() -> None:
    """In the order of the criteria, with what they could have been; unknown ones behind them and without."""
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


def test_a_rubric_gives_shares() -> None:
    """Its categories are values of 0 to 1."""
    criteria = next(c for c in load_criteria() if c.rubric)
    view = distributed(1, 0, 0, categories=[category(criteria.rubric[0].id, 0.4, criteria.name)])
    assert view.categories[0][1][0].most == 1.0


def test_an_average_beyond_todays_most_has_no_share() -> None:
    """The criteria had more points to give when those scores were made."""
    view = distributed(1, 0, 0, categories=[category("logical_flow", 30.0)])
    assert view.categories[0][1][0].most is None


def test_tags_have_a_meaning_where_criteria_know_them() -> None:
    """Out of every criteria's vocabulary."""
    known = meanings(load_criteria())
    assert "no entry shows" in known["hallucinated_evidence"]
    assert "made_up" not in known


def test_bands_of_criteria_have_no_colours_of_badges() -> None:
    """Their borders are others, so the colours would say something wrong; their names are theirs."""
    found = Distribution([BandCount("partly_right", 35, 59, 2, [])], 0, 0, [])
    form: Asked = asked({}, TODAY)
    view = distribution_view(found, load_criteria(), form, "Scores", is_default=False)
    assert view.bands[0].name == "partly right"
    assert "filled plain" in view.picture
    assert "partly right, 35 to 59" in view.picture
