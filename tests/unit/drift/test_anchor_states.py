"""The state of an anchor, the judge of a chain, and how anchors are drawn."""

import random
from collections import Counter
from typing import Any

from tables import table
from tarsy_scoring.studies.anchors import State, draw_alike, judges_of, state_of


@table
def test_anchor_is_due_while_it_lacks_a_judgement(row: dict[str, Any], wanted: int, state: State, is_due: bool) -> None:
    """An anchor is requested while it lacks a judgement, none is under way, and tries are left."""
    fresh = {"has_no_judge": False, "judgements": 0, "open": 0, "error_kind": None, "tries": 0, "asked_lately": False}
    assert state_of(fresh | row, wanted) == (state, is_due)


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


def test_each_anchor_is_drawn_at_most_once() -> None:
    for count in (1, 99, 100, 500):
        drawn = draw_alike(CANDIDATES, count, random.Random(3))
        assert len(set(drawn)) == len(drawn) == min(count, 100)
    assert draw_alike([], 5, random.Random(3)) == []
