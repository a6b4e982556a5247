"""The state of an anchor, and the judge of a chain."""

from typing import Any

from tables import table
from tarsy_scoring.studies.anchors import State, judges_of, state_of


@table
def test_anchor_is_due_while_it_lacks_a_judgement(row: dict[str, Any], state: State, is_due: bool) -> None:
    """An anchor is requested while it lacks a judgement, none is under way, and tries are left."""
    fresh = {"has_no_judge": False, "judgements": 0, "open": 0, "error_kind": None, "tries": 0, "asked_lately": False}
    assert state_of(fresh | row) == (state, is_due)


def test_the_judge_of_a_chain_gave_most_of_its_newest_scores() -> None:
    for newest_first, judge in {"aaaaa": "a", "baaaa": "a", "bbbaa": "b", "ba": "b", "b": "b"}.items():
        rows = [{"chain_id": "k", "criteria": "c", "criteria_hash": "h", "fingerprint": f} for f in newest_first]
        assert [j.fingerprint for j in judges_of(rows)] == [judge]
