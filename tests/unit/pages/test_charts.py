"""Pictures show the numbers they were given, join no two judges, and hold only text and shapes."""

import itertools
import re
from datetime import date, timedelta
from xml.etree import ElementTree

import pytest
from markupsafe import Markup

from tarsy_scoring.analytics.analytics import TrendPoint
from tarsy_scoring.web.pages.charts import (
    LETTER,
    Bar,
    bar_picture,
    describe_trend,
    draw,
    number_judges,
    shorten,
    split_into_runs,
    trend_picture,
)

MONDAY = date(2026, 1, 5)
HOSTILE = '"><script>alert(1)</script><svg onload=alert(2) style="x">'


def day(number: int, judge: str = "a", average: float = 60.0, **more: int) -> TrendPoint:
    """The trend point of the n-th day after Monday."""
    lowest, highest = more.get("lowest", int(average) - 10), more.get("highest", int(average) + 10)
    return TrendPoint(MONDAY + timedelta(days=number), judge, "c", average, lowest, highest, more.get("count", 3))


def days(judges: str) -> list[TrendPoint]:
    """A day per letter; a dot is one without any score, letters in brackets share one."""
    parts = re.findall(r"\((\w+)\)|(\w)|\.", judges)
    return [day(n, f) for n, (shared, single) in enumerate(parts) for f in shared or single]


def parsed(picture: Markup) -> ElementTree.Element:
    return ElementTree.fromstring(str(picture))


def of_class(picture: Markup, name: str) -> list[ElementTree.Element]:
    return [e for e in parsed(picture).iter() if name in e.get("class", "").split()]


def words(picture: Markup, name: str) -> list[str]:
    return [e.text or "" for e in of_class(picture, name)]


def judge_mark(number: int) -> Markup:
    return draw("judge_mark", number=number)


def run_names(runs_of: str) -> list[str]:
    """The runs of days, each as its fingerprint and how many days it has."""
    return [f"{r.judge}{len(r.days)}" for r in split_into_runs(days(runs_of))]


@pytest.mark.parametrize(
    ("judges", "runs"),
    [
        pytest.param("aaa", ["a3"], id="one judge"),
        pytest.param("a..a", ["a2"], id="days without a score part nothing"),
        pytest.param("aabb", ["a2", "b2"], id="another judge takes over"),
        pytest.param("aabaa", ["a2", "b1", "a2"], id="and hands back"),
        pytest.param("a(ab)b", ["a2", "b2"], id="on a day that both have"),
        pytest.param("(ab)(ab)(ab)", ["a3", "b3"], id="side by side"),
        pytest.param("a", ["a1"], id="a single day"),
        pytest.param("", [], id="no day"),
    ],
)
def test_a_line_is_the_days_of_one_judge(judges: str, runs: list[str]) -> None:
    """Two fingerprints are never joined, and no line passes over the days of another one."""
    assert run_names(judges) == runs


def test_judges_are_numbered_as_they_appear() -> None:
    assert number_judges(reversed(days("zza(ab)"))) == {"z": 1, "a": 2, "b": 3}


def test_a_break_with_a_label_stands_where_a_judge_begins() -> None:
    """A dashed line and a label mark each beginning but the first, also where an earlier judge returns."""
    picture = trend_picture(days("aabbaa"), "Scores")
    assert words(picture, "break-word") == ["judge 1", "new judge: 2", "new judge: 1"]
    breaks = [float(e.get("x1", "")) for e in of_class(picture, "break")]
    points = [float(e.get("cx") or e.get("x") or "") for e in of_class(picture, "point")]
    assert len(breaks) == 2
    assert points[1] < breaks[0] < points[2] < points[3] < breaks[1] < points[4]
    assert len(of_class(picture, "average")) == 3, "one line per run"


def test_labels_never_overlap() -> None:
    """Where judges change every day, each change has a dashed line, and a label where there is room."""
    picture = trend_picture(days("abcdefghij" * 4), "Scores")
    assert len(of_class(picture, "break")) == 39
    placed = [(float(e.get("x", "")), e.text or "") for e in of_class(picture, "break-word")]
    assert len(placed) > 3
    for (x, text), (next_x, _) in itertools.pairwise(placed):
        assert x + len(text) * LETTER <= next_x


def test_a_label_at_the_right_edge_is_not_cut_off() -> None:
    """It begins before its line where there is no room after it."""
    picture = trend_picture(days("a" * 60 + "b"), "Scores")
    last = of_class(picture, "break-word")[-1]
    assert last.text == "new judge: 2"
    assert float(last.get("x", "")) + len(last.text) * LETTER <= 720


def test_heights_follow_the_totals() -> None:
    """Higher is better, 0 to 100; the band holds the lowest and the highest of each day."""
    picture = trend_picture(
        [day(0, average=0, lowest=0), day(1, average=50, lowest=20, highest=80), day(2, average=100, highest=100)],
        "Scores",
    )
    (line,) = of_class(picture, "average")
    heights = [float(corner.split(",")[1]) for corner in line.get("points", "").split()]
    assert heights[0] > heights[1] > heights[2]
    assert heights[1] == pytest.approx((heights[0] + heights[2]) / 2, abs=0.1)
    (band,) = of_class(picture, "range")
    corners = [tuple(map(float, c.split(","))) for c in band.get("points", "").split()]
    assert len(corners) == 6
    assert [x for x, _ in corners] == sorted(x for x, _ in corners[:3]) + sorted(
        (x for x, _ in corners[3:]), reverse=True
    )
    middle = sorted(y for x, y in corners if x == corners[1][0])
    assert middle[0] < heights[1] < middle[1]
    assert heights[0] - middle[1] == pytest.approx((heights[0] - heights[2]) * 0.2, abs=0.1)


def test_a_run_of_one_day_shows_its_range() -> None:
    """An area without width could not be seen."""
    picture = trend_picture([day(0, lowest=20, highest=90)], "Scores")
    (whisker,) = of_class(picture, "whisker")
    assert float(whisker.get("y1", "")) < float(whisker.get("y2", ""))
    assert not of_class(picture, "range")


def test_counts_are_bars_that_add_up() -> None:
    """The fullest day fills the strip; bars of one day stand on each other."""
    picture = trend_picture([day(0, "a", count=1), day(1, "a", count=2), day(1, "b", count=2)], "Scores")
    bars = of_class(picture, "count")
    heights = [float(b.get("height", "")) for b in bars]
    assert heights == pytest.approx([34 / 4, 34 / 2, 34 / 2], abs=0.1)
    assert float(bars[2].get("y", "")) + heights[2] == pytest.approx(float(bars[1].get("y", "")), abs=0.1)
    assert "4" in words(picture, "end")


@pytest.mark.parametrize("count", [1, 2, 8, 9, 60, 366, 1_500, 5_000])
def test_dates_do_not_overlap(count: int) -> None:
    """There are at most eight dates, the first is the first day, and none overlaps another."""
    picture = trend_picture([day(0), day(count - 1, average=50)] if count > 1 else [day(0)], "Scores")
    placed = [(float(e.get("x", "")), e.text or "") for e in of_class(picture, "middle")]
    for x, text in placed:
        half = len(text) * LETTER / 2
        assert half <= x <= 720 - half
    assert 1 <= len(placed) <= 8
    assert placed[0][1] in ("05 Jan", "2026-01-05")
    for (x, text), (next_x, next_text) in itertools.pairwise(placed):
        assert x + len(text) * LETTER / 2 <= next_x - len(next_text) * LETTER / 2
    assert (placed[0][1] == "2026-01-05") == (count > 361), "more than one year: dates with their year"


def test_everything_stays_within_the_picture() -> None:
    """No shape is cut off at the edge, whatever the numbers."""
    picture = trend_picture([day(n, average=a, lowest=-500, highest=500) for n, a in enumerate((0, 100, 50))], "Scores")
    _, _, width, height = map(float, parsed(picture).get("viewBox", "").split())
    for shape in parsed(picture).iter():
        for name, value in shape.attrib.items():
            if name in ("x", "x1", "x2", "cx"):
                assert 0 <= float(value) <= width
            if name in ("y", "y1", "y2", "cy"):
                assert 0 <= float(value) <= height
            if name == "points":
                for corner in value.split():
                    x, y = map(float, corner.split(","))
                    assert 0 <= x <= width
                    assert 0 <= y <= height


def test_each_place_of_a_trend_shows_its_nearest_day() -> None:
    """Without gaps, also over days without scores; a day of two judges has a line for each."""
    picture = trend_picture([day(0, "a"), day(4, "a", count=1), day(4, "b", average=70.25)], "Scores")
    first, second = stops = of_class(picture, "stop")
    left, width = float(first.get("x", "")), float(first.get("width", ""))
    assert left + width == pytest.approx(float(second.get("x", "")), abs=0.1)
    middles = [float(stop.get("data-at", "")) for stop in stops]
    assert left + width == pytest.approx(sum(middles) / 2, abs=0.1)
    assert [(stop[0].text or "").splitlines() for stop in stops] == [
        ["Mon 2026-01-05", "judge 1: average 60.0, 50 to 70, 3 scores"],
        [
            "Fri 2026-01-09",
            "judge 1: average 60.0, 50 to 70, 1 score",
            "judge 2: average 70.2, 60 to 80, 3 scores",
        ],
    ]
    root = parsed(picture)
    assert [e.get("class") for e in list(root)[-2:]] == ["stop", "stop"], "nothing lies above them"


def test_each_row_of_bars_shows_its_label_in_full() -> None:
    picture = bar_picture([Bar("x" * 60, 0.5, "5"), Bar("b", 1, "10")], "Bars")
    assert [stop[0].text for stop in of_class(picture, "stop")] == [f"{'x' * 60}: 5", "b: 10"]
    assert [float(stop.get("y", "")) for stop in of_class(picture, "stop")] == [0, 30]


def test_a_trend_is_described_in_words() -> None:
    text = describe_trend([day(0, "a", 50), day(1, "a", 70, count=1), day(2, "b", 90, count=1)])
    assert text == (
        "5 scores from 2026-01-05 to 2026-01-07. "
        "Judge 1: on average 50 on 2026-01-05, 70 on 2026-01-06; between 40 and 80. "
        "Judge 2: on average 90 on 2026-01-07."
    )


def test_a_picture_has_a_name_and_a_description() -> None:
    """A screen reader reads title and description of an image in place of forty shapes."""
    root = parsed(trend_picture(days("ab"), "Scores of <kubernetes>"))
    assert root.get("role") == "img"
    named = {e.get("id"): e.text for e in root if e.get("id")}
    assert named[root.get("aria-labelledby")] == "Scores of <kubernetes>"
    assert named[root.get("aria-describedby")] == describe_trend(days("ab"))


def test_judges_differ_by_shape_and_by_look() -> None:
    """Neighbours never differ by colour alone, and the mark beside a name is that of the line."""
    marks = [judge_mark(n) for n in (1, 2, 3, 4)]
    shapes = {re.sub(r"look-\d", "", m) for m in marks}
    assert len(shapes) == 4
    looks = [of_class(judge_mark(n), "point")[0].get("class") for n in range(1, 8)]
    assert looks[0] == looks[6]
    assert len(set(looks)) == 6
    (point,) = of_class(trend_picture([day(0)], "Scores"), "point")
    assert point.get("class") == looks[0]


def test_bars_fill_their_share() -> None:
    picture = bar_picture([Bar("a", 0.5, "5"), Bar("b", 1, "10"), Bar("c", 0, "0")], "Bars")
    track = float(of_class(picture, "track")[0].get("width", ""))
    assert [float(e.get("width", "")) / track for e in of_class(picture, "filled")] == [0.5, 1, 0]
    assert words(picture, "label") == ["a", "b", "c"]
    assert words(picture, "value") == ["5", "10", "0"]


@pytest.mark.parametrize("empty", [trend_picture([], "t"), bar_picture([], "t")], ids=["trend", "bars"])
def test_without_numbers_there_is_no_picture(empty: Markup) -> None:
    """An empty frame would look like a result."""
    assert empty == ""


def test_text_stays_text() -> None:
    """Names come from sessions and judges, so they are escaped."""
    for picture in (bar_picture([Bar(HOSTILE, 1, HOSTILE)], HOSTILE), trend_picture([day(0, HOSTILE)], HOSTILE)):
        elements = list(parsed(picture).iter())
        assert {e.tag for e in elements} <= {"svg", "title", "desc", "text", "rect", "line", "circle"}
        assert not [a for e in elements for a in e.attrib if a == "style" or a.startswith("on")]
        assert HOSTILE in [e.text for e in elements]


def test_long_labels_are_shortened() -> None:
    """A label never runs into its bar; the table beside it has the name in full."""
    assert shorten("short\n one") == "short one"
    assert len(shorten("x" * 5_000)) == 28
    assert shorten("x" * 29).endswith("x…")
    assert shorten("x" * 28) == "x" * 28
