"""What an anchor lacks, who the judge of a chain is, and how anchors are drawn."""

import random
from collections import Counter
from typing import Any

from tarsy_scoring.drift.anchors import State, draw_alike, judges_of, state_of


def a_row(**changes: Any) -> dict[str, Any]:
    fresh = {"has_no_judge": False, "judgements": 0, "open": 0, "error_kind": None, "tries": 0, "asked_lately": False}
    return fresh | changes


def test_what_an_anchor_lacks() -> None:
    """It is requested while it lacks a judgement, none is under way, and tries are left."""
    cases: list[tuple[dict[str, Any], State, bool]] = [
        ({}, "lacking", True),
        ({"has_no_judge": True}, "no_judge", False),
        ({"judgements": 1}, "judged", False),
        ({"judgements": 1, "open": 1, "error_kind": "refused"}, "judged", False),
        ({"open": 1, "tries": 1}, "under_way", False),
        ({"tries": 1, "asked_lately": True}, "lacking", False),
        ({"tries": 2, "error_kind": "refused"}, "lacking", True),
        ({"tries": 3, "error_kind": "refused"}, "given_up", False),
        ({"tries": 1, "error_kind": "session_not_found"}, "gone", False),
        ({"open": 1, "error_kind": "session_not_found"}, "under_way", False),
        ({"judgements": 1, "error_kind": "session_not_found"}, "judged", False),
    ]

    for changes, state, is_due in cases:
        assert state_of(a_row(**changes), 1) == (state, is_due), changes
    # Where three judgements are wanted, there are more tries.
    for changes, state in (
        ({"judgements": 2}, "lacking"),
        ({"judgements": 3}, "judged"),
        ({"tries": 4}, "lacking"),
        ({"tries": 5}, "given_up"),
    ):
        assert state_of(a_row(**changes), 3)[0] == state


def test_the_judge_of_a_chain_gave_most_of_its_newest_scores() -> None:
    for newest_first, judge in {"aaaaa": "a", "baaaa": "a", "bbbaa": "b", "ba": "b", "b": "b"}.items():
        rows = [{"chain_id": "k", "criteria": "c", "criteria_hash": "h", "fingerprint": f} for f in newest_first]
        assert [j.fingerprint for j in judges_of(rows)] == [judge]


CANDIDATES = [(f"{stratum}-{n}", stratum) for stratum, count in (("x", 70), ("y", 20), ("z", 10)) for n in range(count)]


def test_every_stratum_has_its_share() -> None:
    for seed in range(50):
        drawn = Counter(name[0] for name in draw_alike(CANDIDATES, 25, random.Random(seed)))
        assert drawn.total() == 25
        assert abs(drawn["x"] - 17.5) <= 1
        assert abs(drawn["y"] - 5) <= 1
        assert abs(drawn["z"] - 2.5) <= 1


def test_neighbours_can_be_drawn_together() -> None:
    pairs = {("x-0", "x-1"), ("y-3", "y-4")}
    seen = {p for seed in range(300) for p in pairs if set(p) <= set(draw_alike(CANDIDATES, 25, random.Random(seed)))}

    assert seen == pairs


def test_nobody_is_drawn_twice_and_no_more_than_there_are() -> None:
    for count in (1, 99, 100, 500):
        drawn = draw_alike(CANDIDATES, count, random.Random(3))
        assert len(set(drawn)) == len(drawn) == min(count, 100)
    assert draw_alike([], 5, random.Random(3)) == []
