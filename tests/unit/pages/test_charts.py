"""Pictures show the numbers they were given, join no two judges, and hold only text and shapes."""

import re
from dataclasses import replace
from datetime import date, timedelta
from xml.etree import ElementTree

import pytest
from markupsafe import Markup

from tarsy_scoring.analytics.analytics import TrendPoint
from tarsy_scoring.scores.bands import bands_of
from tarsy_scoring.web.pages.charts import trend_view
from tarsy_scoring.web.pages.rendering import NO_CRITERIA

MONDAY = date(2026, 1, 5)


def day(number: int, judge: str | None = "a", average: float = 60.0, count: int = 3) -> TrendPoint:
    """The trend point of the n-th day after Monday."""
    at = MONDAY + timedelta(days=number)
    return TrendPoint(at, judge, "c", average, int(average) - 10, int(average) + 10, count)


def of_class(picture: Markup, name: str) -> list[ElementTree.Element]:
    found = ElementTree.fromstring(str(picture)).iter()
    return [e for e in found if name in e.get("class", "").split()]


def corners(line: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in line.get("points", "").split())]


def test_a_line_never_joins_two_judges() -> None:
    """Also where an earlier judge returns; a dashed line marks where another one begins."""
    picture = trend_view([day(n, judge) for n, judge in enumerate("aabba")], "Scores", NO_CRITERIA.bands).picture

    first, second = (corners(line) for line in of_class(picture, "average"))
    [border] = of_class(picture, "break")
    assert (len(first), len(second)) == (3, 2)
    assert float(border.get("x1", "")) == second[0][0]


def test_heights_follow_the_totals() -> None:
    """Higher is better, 0 to 100; the area holds the lowest and the highest of each day."""
    picture = trend_view(
        [day(0, average=10), day(1, average=50), day(2, average=90)], "Scores", NO_CRITERIA.bands
    ).picture

    heights = [y for _, y in corners(of_class(picture, "average")[0])]
    assert heights[0] > heights[1] > heights[2]
    assert heights[1] == pytest.approx((heights[0] + heights[2]) / 2, abs=0.1)
    area = sorted(
        y for x, y in corners(of_class(picture, "range")[0]) if x == corners(of_class(picture, "range")[0])[1][0]
    )
    assert area[0] < heights[1] < area[1]


def test_guides_are_the_edges_of_one_criteria() -> None:
    """Two criteria have no edges in common."""
    points = [day(0), replace(day(1), criteria="other")]
    for shown, edges in ((points[:1], ["0", "35", "60", "100"]), (points, ["0", "100"])):
        picture = trend_view(
            shown, "Scores", lambda _: bands_of({"high": (60, 100), "mid": (35, 59), "low": (0, 34)})
        ).picture
        assert [e.text for e in of_class(picture, "end")][: len(edges)] == edges


def test_every_day_says_its_numbers() -> None:
    """As a tooltip, in the picture's own shapes."""
    picture = trend_view([day(0), day(400, "b", count=1)], "Scores", NO_CRITERIA.bands).picture

    said = [title.text for title in ElementTree.fromstring(str(picture)).iter("title")]
    assert "2026-01-05, judge 1: average 60.0, 50 to 70, 3 scores" in said
    assert "2027-02-09, judge 2: average 60.0, 50 to 70, 1 score" in said
    assert len(of_class(picture, "middle")) <= 8


def test_the_table_has_the_judges_of_the_picture() -> None:
    """A score without a fingerprint is of a judge of its own."""
    view = trend_view([day(1, "z", count=5), day(0, None), day(2, None)], "Totals", NO_CRITERIA.bands)

    assert [(name, len(days)) for name, days in view.judges.items()] == [("unknown", 2), ("z", 1)]
    assert [judge for judge, _ in view.rows] == [1, 2, 1]
    assert view.count == 11


def test_hostile_text_stays_text() -> None:
    hostile = '"><script>alert(1)</script><svg onload=alert(2) style="x">'
    picture = trend_view([day(0, hostile)], hostile, NO_CRITERIA.bands).picture

    assert not re.search(r"<script|onload=|\sstyle=", str(picture).replace("&#34;", '"').split("aria-label")[0])
    assert [e.tag for e in ElementTree.fromstring(str(picture)).iter() if e.tag in ("script", "svg")] == ["svg"]
