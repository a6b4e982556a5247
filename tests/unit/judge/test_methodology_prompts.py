"""The shipped prompts as prose: complete, in order, without contradiction."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tarsy_scoring.judge.criteria import Criteria, load_criteria
from tarsy_scoring.judge.extraction import extract_breakdown, extract_total


@pytest.fixture(scope="module")
def criteria() -> Criteria:
    return load_criteria().get("investigation-methodology")


@pytest.fixture(scope="module")
def told(criteria: Criteria) -> str:
    """All that the judge is told before it answers, with single blanks."""
    opening = criteria.open_conversation(SimpleNamespace(alert="<ALERT>", conversation="<TIMELINE>"))
    return " ".join("\n".join(m.content for m in opening).split())


RULES: dict[str, list[str]] = json.loads(Path(__file__).with_name("methodology_rules.json").read_text(encoding="utf-8"))
OF_THE_FOLLOW_UP = RULES.pop("follow_up")


def test_every_rule_is_told(told: str) -> None:
    assert [rule for rules in RULES.values() for rule in rules if rule.lower() not in told.lower()] == []


def test_role_then_data_then_task_then_form(told: str) -> None:
    places = [
        told.index(text)
        for text in (
            "You are an expert",
            "<ALERT>",
            "<TIMELINE>",
            "Your task",
            "five questions",
            "Answer in this order",
        )
    ]
    assert places == sorted(places)


def test_the_four_categories_are_25_points_each(criteria: Criteria, told: str) -> None:
    assert criteria.max_points == {"logical_flow": 25, "consistency": 25, "tool_relevance": 25, "synthesis_quality": 25}
    assert re.findall(r"## \d\. ([\w ]+) \(0-25\)", told) == [
        "Logical Flow",
        "Consistency",
        "Tool Relevance",
        "Synthesis Quality",
    ]


def test_the_bands_of_the_calibration_cover_0_to_100_once(told: str) -> None:
    bands = [range(int(a), int(b) + 1) for a, b in re.findall(r"- (\d+)-(\d+):", told)]
    assert sorted(point for band in bands for point in band) == list(range(101))


def test_typical_points_end_where_the_exception_begins(told: str) -> None:
    typical = re.findall(r"Typical: (\d+)-(\d+)\. Give (\d+) or more", told)
    assert len(typical) == 4
    assert all(int(high) + 1 == int(exception) for _, high, exception in typical)


def test_limits_are_repeated_as_they_were_given(told: str) -> None:
    assert set(re.findall(r"at most (\d+)", told)) == {"60", "55"}
    assert set(re.findall(r"[Aa]bove (\d+)", told)) == {"70"}


def test_the_form_that_is_asked_for_is_the_form_that_is_read(criteria: Criteria) -> None:
    lines = criteria.added_by_code["output_schema"].replace("X/25", "17/25")
    assert extract_breakdown(lines, criteria.max_points) == dict.fromkeys(criteria.max_points, 17)
    assert extract_total(f"{lines}\n\n68") == 68


def test_the_follow_up_asks_for_critical_tools_alone(criteria: Criteria) -> None:
    follow_up = " ".join((criteria.follow_up_prompt or "").split())
    assert [rule for rule in OF_THE_FOLLOW_UP if rule not in follow_up] == []


def test_the_reminder_asks_for_the_total_alone_and_changes_nothing_else(criteria: Criteria) -> None:
    reminder = " ".join((criteria.reminder_prompt or "").split())
    assert "Do not change your evaluation" in reminder
    assert "the total alone" in reminder
    assert len(reminder.split()) < 50
