"""Which spellings of missing tools count as one tool."""

import time

from tables import table
from tarsy_scoring.evaluation.tool_names import Tool, bare, merge_spellings, normalise


def merged_spellings(*spellings: str) -> list[set[str]]:
    """The spellings of each tool."""
    return [{name for name, _ in tool.spellings} for tool in merge_spellings(dict.fromkeys(spellings, 1))]


def test_the_most_used_spelling_names_the_tool() -> None:
    tools = merge_spellings({"Get Pod Logs": 2, "get_pod_logs": 5, "node_cpu": 6, "get-pod-logs": 2, "disk_io": 6})

    assert tools == [
        Tool("get_pod_logs", (("get_pod_logs", 5), ("Get Pod Logs", 2), ("get-pod-logs", 2))),
        Tool("disk_io", (("disk_io", 6),)),
        Tool("node_cpu", (("node_cpu", 6),)),
    ]


@table
def test_similar_spellings_are_one_tool(one: str, other: str) -> None:
    assert merged_spellings(one, other) == [{one, other}]


@table
def test_distinct_spellings_are_two_tools(one: str, other: str) -> None:
    assert sorted(map(tuple, merged_spellings(one, other))) == sorted([(one,), (other,)])


def test_spellings_are_not_chained_over_small_differences() -> None:
    tools = merge_spellings({"prometheus_query": 9, "prometheu_query": 2, "prometeu_query": 1})

    assert [tool.name for tool in tools] == ["prometheus_query", "prometeu_query"]


def test_the_order_of_spellings_changes_nothing() -> None:
    counts = {"get_pod_logs": 2, "get_pods_logs": 2, "get_pods_log": 2, "Get Pod Logs": 1, "node_cpu": 3}

    assert merge_spellings(counts) == merge_spellings(dict(reversed(counts.items())))


def test_hostile_names_are_merged_in_bounded_time() -> None:
    for start in ("a" * 2000, "a" * 80, "x " * 20):
        began = time.thread_time()  # other processes share the machine

        merge_spellings({start + f"{n:011b}".replace("0", "b").replace("1", "c"): 1 for n in range(400)})

        assert time.thread_time() - began < 2


@table
def test_name_is_normalised(name: str, expected: str) -> None:
    assert normalise(name) == expected


def test_bare_name_leaves_out_the_server() -> None:
    assert [bare("loki.search_logs"), bare("search_logs"), bare("odd.")] == ["search_logs", "search_logs", "odd."]


# --- decisions -----------------------------------------------------------------------------------------


def test_a_name_that_was_split_off_stays_a_tool_of_its_own() -> None:
    for used in (1, 90):
        counts = {"query_metrics": 5, "query_metric": used, "Query-Metric": used}

        tools = merge_spellings(counts, {"query_metric": "query_metric"})

        spellings = {tool.name: {name for name, _ in tool.spellings} for tool in tools}
        assert spellings == {"query_metrics": {"query_metrics"}, "query_metric": {"query_metric", "Query-Metric"}}


def test_a_name_joined_by_hand_counts_for_its_tool() -> None:
    tools = merge_spellings({"tail_logs": 4, "Tail Logs": 1, "disk_io": 2}, {"tail-logs": "live_logs"})

    assert tools == [Tool("live_logs", (("tail_logs", 4), ("Tail Logs", 1))), Tool("disk_io", (("disk_io", 2),))]


def test_a_tool_that_was_decided_about_keeps_its_name() -> None:
    [tool] = merge_spellings({"query_metrics": 50, "query_metric": 3}, standing=["query_metric"])

    assert tool.name == "query_metric"


def test_joined_names_are_followed_to_the_last_even_in_a_circle() -> None:
    counts = {"one": 1, "two": 2, "three": 3}

    [tool] = merge_spellings(counts, {"one": "two", "two": "three"})
    [circle] = merge_spellings(counts, {"one": "two", "two": "three", "three": "one"})

    assert (tool.name, len(tool.spellings)) == ("three", 3)
    assert (circle.name, len(circle.spellings)) == ("one", 3)
