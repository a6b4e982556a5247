"""What an anchor lacks, who the judge of a chain is, and how anchors are drawn."""

import random
from collections import Counter
from typing import Any

import pytest

from tarsy_scoring.drift.anchors import State, draw_alike, judges_of, state_of


def a_row(**changes: Any) -> dict[str, Any]:
    fresh = {"has_no_judge": False, "judged": 0, "open": 0, "newest_error": None, "tries": 0, "asked_lately": False}
    return fresh | changes


@pytest.mark.parametrize(
    ("changes", "state", "is_due"),
    [
        pytest.param({}, "lacking", True, id="new"),
        pytest.param({"has_no_judge": True}, "no_judge", False, id="a-chain-without-scores"),
        pytest.param({"judged": 1}, "judged", False, id="judged"),
        pytest.param({"judged": 1, "open": 1, "newest_error": "refused"}, "judged", False, id="judged-all-the-same"),
        pytest.param({"open": 1, "tries": 1}, "under_way", False, id="under-way"),
        pytest.param({"tries": 1, "asked_lately": True}, "lacking", False, id="failed-just-now"),
        pytest.param({"tries": 2, "newest_error": "refused"}, "lacking", True, id="failed-yesterday"),
        pytest.param({"tries": 3, "newest_error": "refused"}, "given_up", False, id="failed-for-good"),
        pytest.param({"tries": 1, "newest_error": "session_not_found"}, "gone", False, id="gone"),
        pytest.param({"open": 1, "newest_error": "session_not_found"}, "under_way", False, id="tried-once-more"),
        pytest.param({"judged": 1, "newest_error": "session_not_found"}, "judged", False, id="judged-before-it-went"),
    ],
)
def test_what_an_anchor_lacks(changes: dict[str, Any], state: State, is_due: bool) -> None:
    """It is asked for where it lacks something, nobody is at it, and there is hope."""
    assert state_of(a_row(**changes), 1) == (state, is_due)


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        pytest.param({"judged": 2}, "lacking", id="one-is-lacking"),
        pytest.param({"judged": 3}, "judged", id="all-are-there"),
        pytest.param({"tries": 4}, "lacking", id="more-tries-for-more"),
        pytest.param({"tries": 5}, "given_up", id="and-no-more"),
    ],
)
def test_several_judgements_of_each(changes: dict[str, Any], state: State) -> None:
    """Where three are wanted."""
    assert state_of(a_row(**changes), 3)[0] == state


@pytest.mark.parametrize(
    ("newest_first", "judge"),
    [
        pytest.param("aaaaa", "a", id="one-judge"),
        pytest.param("baaaa", "a", id="a-stand-in"),
        pytest.param("bbbaa", "b", id="took-over"),
        pytest.param("ba", "b", id="as-many-of-both"),
        pytest.param("b", "b", id="one-score"),
    ],
)
def test_the_judge_of_a_chain_gave_most_of_its_newest_scores(newest_first: str, judge: str) -> None:
    """And where that says nothing, the newest."""
    rows = [
        {"chain_id": "k", "criteria": "c", "criteria_hash": "h", "judge_fingerprint": letter} for letter in newest_first
    ]

    assert [j.fingerprint for j in judges_of(rows)] == [judge]


CANDIDATES = [(f"{stratum}-{n}", stratum) for stratum, count in (("x", 70), ("y", 20), ("z", 10)) for n in range(count)]


def test_every_stratum_has_its_share() -> None:
    """Give or take one, whatever the dice say."""
    for seed in range(50):
        drawn = Counter(name[0] for name in draw_alike(CANDIDATES, 25, random.Random(seed)))
        assert drawn.total() == 25
        assert abs(drawn["x"] - 17.5) <= 1
        assert abs(drawn["y"] - 5) <= 1
        assert abs(drawn["z"] - 2.5) <= 1


def test_everybody_is_as_likely_to_be_drawn() -> None:
    """The rare as the frequent: in 2,000 draws of one in four each comes up 500 times, within four deviations."""
    counts = Counter(name for seed in range(2000) for name in draw_alike(CANDIDATES, 25, random.Random(seed)))

    assert len(counts) == 100
    assert all(abs(n - 500) < 4 * 19.4 for n in counts.values())


def test_neighbours_can_be_drawn_together() -> None:
    """Whatever order the candidates come in, no two of them exclude each other."""
    pairs = {("x-0", "x-1"), ("y-3", "y-4")}
    seen = {p for seed in range(300) for p in pairs if set(p) <= set(draw_alike(CANDIDATES, 25, random.Random(seed)))}

    assert seen == pairs


def test_nobody_is_drawn_twice_and_no_more_than_there_are() -> None:
    """Also at the edges."""
    for count in (1, 99, 100, 500):
        drawn = draw_alike(CANDIDATES, count, random.Random(3))
        assert len(set(drawn)) == len(drawn) == min(count, 100)
    assert draw_alike([], 5, random.Random(3)) == []
