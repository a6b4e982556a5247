"""What differs between two weeks: which shares are named, and which of them chance may explain."""

from collections.abc import Mapping

import pytest

from tarsy_scoring.analytics.differences import Counted, Difference, Kind, Numbers, compare, tally

SCORES = (31, 26)


def differences(kind: Kind, having: Mapping[str, Numbers], scores: Numbers = SCORES) -> dict[str, Difference]:
    return {"+".join(one.names): one for one in compare([Counted(kind, scores, having)])}


def test_a_share_that_rose_is_named_with_its_counts() -> None:
    found = differences("missing_tool", {"sql_query": (1, 15), "search_traces": (2, 2)})

    assert [(name, one.is_clear) for name, one in found.items()] == [("sql_query", True), ("search_traces", False)]
    assert found["sql_query"].direction == "more often"
    assert found["sql_query"].counts_in_words == "in 15 of 26 scores, before in 1 of 31"
    assert found["sql_query"].shares == pytest.approx((1 / 31, 15 / 26))


@pytest.mark.parametrize("kind", ["failure_tag", "missing_tool", "alert_type", "label", "flag"])
def test_a_share_that_fell_is_not_named(kind: Kind) -> None:
    """A label with a new value would be named twice."""
    assert list(differences(kind, {"version=v1": (31, 0), "version=v2": (0, 26)})) == ["version=v2"]


def test_tools_that_agents_lost_are_named_together() -> None:
    """Those of one server come and go together."""
    found = differences("agent_tool", {"query": (31, 0), "explain": (31, 0), "logs": (31, 26), "traces": (0, 26)})

    assert {name: one.direction for name, one in found.items()} == {
        "explain+query": "less often",
        "traces": "more often",
    }
    assert all(one.is_clear for one in found.values())


def test_a_difference_is_judged_among_all_that_were_compared() -> None:
    """With p = 0.02 one share is clear by itself, and one of ten shares is not."""
    others = {f"tag-{n}": (10, 8) for n in range(9)}

    assert differences("failure_tag", {"wrong_conclusion": (3, 9)})["wrong_conclusion"].is_clear
    assert not differences("failure_tag", others | {"wrong_conclusion": (3, 9)})["wrong_conclusion"].is_clear


@pytest.mark.parametrize("scores", [(0, 26), (31, 0)], ids=["before", "now"])
def test_nothing_is_compared_with_no_score(scores: Numbers) -> None:
    assert differences("flag", {"ungrounded": (0, 5)}, scores) == {}


def test_a_count_above_the_scores_is_the_whole() -> None:
    """A score that ends between two statements is counted by the second one alone."""
    assert differences("failure_tag", {"missed_evidence": (2, 27)})["missed_evidence"].having == (2, 26)


def test_rows_add_up_by_name_and_week() -> None:
    rows = [(False, ("a", "b"), 3), (True, ("a",), 2), (True, ("a",), 1)]
    assert tally(rows) == {"a": (3, 3), "b": (3, 0)}
