"""The split of labelled sessions: what criteria are developed on shares no incident with what tests them."""

import csv
from collections import Counter
from pathlib import Path

SPLIT = Path(__file__).resolve().parents[2] / "data" / "judge_bench" / "split.csv"


def rows() -> list[dict[str, str]]:
    with SPLIT.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_an_incident_lies_in_one_half() -> None:
    halves = {(row["source"], row["incident"], row["half"]) for row in rows()}
    assert max(Counter(incident[:2] for incident in halves).values()) == 1
    assert {half for _, _, half in halves} == {"A", "B"}


def test_a_session_stands_in_the_split_once() -> None:
    assert max(Counter(row["session_id"] for row in rows()).values()) == 1
