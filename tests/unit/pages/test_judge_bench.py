"""The page of `judge-bench` stands alone, and its pictures show each session at its total."""

from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from tarsy_scoring.statistics.judge_bench import JudgedSession, Sample, describe, difference
from tarsy_scoring.statistics.known_outcomes import KnownOutcome
from tarsy_scoring.web.pages.judge_bench import page, strip_plot

HOSTILE = '"><script>alert(1)</script>'


def judged(totals: dict[str, int | None]) -> list[JudgedSession]:
    return [
        JudgedSession(
            KnownOutcome(name, "right" if name.startswith("right") else "wrong", HOSTILE, name, None, ""),
            [Sample(total, None if total is not None else f"refused: {HOSTILE}")],
        )
        for name, total in totals.items()
    ]


FIRST = judged({"right-1": 80, "right-2": 50, "wrong-1": 20, "wrong-2": 50, "wrong-3": 50})
SECOND = judged({"right-1": None, "right-2": 50, "wrong-1": 20, "wrong-2": 50, "wrong-3": 50})


def combination(sessions: list[JudgedSession], **names: str) -> dict[str, Any]:
    named = {"criteria": "a", "criteria_hash": "c" * 64, "provider": "main", "model": "m"} | names
    return named | asdict(describe(sessions))


def document(*combinations: dict[str, Any], differences: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    labels = {"judged": 5, "right": 2, "wrong": 3, "sources": 1, "incidents": 5, "basis": {HOSTILE: 5}}
    return {
        "labels": labels | {"left_out": {"partial": 1, "unknown": 0}},
        "samples": 1,
        "judgements": {"recorded": 0, "asked": 5, "outstanding": 0},
        "combinations": list(combinations),
        "differences": list(differences),
    }


def dots(picture: str) -> list[ElementTree.Element]:
    return [e for e in ElementTree.fromstring(picture).iter() if "point" in e.get("class", "").split()]


def test_the_page_needs_no_other_file_and_escapes_what_it_shows() -> None:
    compared = {"first": "a", "second": "b", "provider": "main"} | asdict(difference(FIRST, SECOND))
    found = page(document(combination(FIRST), combination(SECOND, criteria="b"), differences=(compared,)))
    assert "<script" not in found
    assert "src=" not in found
    assert "href=" not in found
    assert found.count("<svg") == 2
    assert "--paper" in found
    assert "b minus a" in found


def test_a_picture_has_a_dot_per_scored_session_and_says_how_many_have_none() -> None:
    picture = str(strip_plot([combination(SECOND)], 1))
    assert len(dots(picture)) == 4
    assert "2 right (1 unscored), main" in picture


def test_equal_totals_lie_above_each_other() -> None:
    places = [(d.get("x"), d.get("y")) for d in dots(str(strip_plot([combination(FIRST)], 1))) if d.get("x")]
    assert len(places) == 3  # the wrong ones are squares
    assert len(set(places)) == 3
    assert len({x for x, _ in places}) == 2


def test_the_providers_of_one_criteria_share_a_picture() -> None:
    found = page(document(combination(FIRST), combination(FIRST, provider="other")))
    assert found.count("<svg") == 1
    assert "other: 3 sessions ranked wrongly" in found


def test_a_session_without_a_score_is_listed_with_its_reason() -> None:
    found = page(document(combination(SECOND)))
    assert "refused: " in found
    assert '<td class="number">3 of 3</td>' in found
